"""Calls of the prebuilt operators that repeat an earlier one (`overlap.api.repeat`), on real ranks.

Every call here has operands of its own, somewhere else in memory, whose products every rank can make; results are poisoned.
"""

import threading
import time

import pytest
import torch
import torch.distributed as dist

import overlap
from overlap.api.repeat import Known
from overlap.codegen.module_io import load_module
from overlap.errors import DeadlineError, RuntimeContractError, UsageError
from overlap.ops import a2a_gemm, ag_gemm, ag_gemm_k, gemm_a2a, gemm_ar, gemm_rs
from overlap.runtime.cuda.bound_launch import _ByAddress, _ByTriton
from overlap.runtime.cuda.call_graph import CallGraph
from overlap.runtime.cuda.driver import Graph
from overlap.runtime.cuda.runtime import known_runtime
from overlap.runtime.repeat import front
from overlap.runtime.workspace import check, release
from tests.support.ranks import WAYS, Product, delay, template

from .conftest import WORLD

pytestmark = pytest.mark.usefixtures("one_folder")
ROWS, DEPTH, COLUMNS = 512 * WORLD, 512 * WORLD, 256 * WORLD
HOW = {"backend": "copy_engine"}


@pytest.fixture(autouse=True, params=["by calls", "lanes in graphs", "whole calls"])
def graphs(request, monkeypatch):
    monkeypatch.setenv("OVERLAP_LANE_GRAPHS", str(int(request.param == "lanes in graphs")))
    monkeypatch.setenv("OVERLAP_CALL_GRAPHS", str(int(request.param == "whole calls")))
    return request.param


@pytest.fixture
def paths(monkeypatch):
    """By what calls went: how many were repeated, how many kernels were launched by address and by Triton's launcher, how
    many lanes by graph, and how many calls were one graph, by Python or in C."""
    counts = {"repeated": 0, "by address": 0, "by Triton": 0, "by graph": 0, "whole": 0, "in C": 0}
    again, address, triton, graph = Known.again, _ByAddress.__call__, _ByTriton.__call__, Graph.__call__
    whole = CallGraph.__call__

    def counted(self, *call):
        found = again(self, *call)
        counts["repeated"] += found is not None
        return found

    def by_address(self, *args, **kwargs):
        counts["by address"] += 1
        return address(self, *args, **kwargs)

    def by_triton(self, *args, **kwargs):
        counts["by Triton"] += 1
        return triton(self, *args, **kwargs)

    def by_graph(self, *launch):
        counts["by graph"] += 1
        return graph(self, *launch)

    def by_one(self, stream, carried):
        done = whole(self, stream, carried)
        counts["whole"] += done
        return done

    class Front:
        """Counts the calls that are made again in C."""

        def __init__(self, front):
            self.front = front
            self.add = front.add

        def again(self, *call):
            found = self.front.again(*call)
            counts["repeated"] += found is not None
            counts["whole"] += found is not None
            counts["in C"] += found is not None
            return found

    made = front._front
    monkeypatch.setattr(front, "_front", lambda runtime: Front(made(runtime)))
    known = getattr(known_runtime(dist.group.WORLD), "overlap_calls", None)
    if known is not None and known.front is not None:
        monkeypatch.setattr(known, "front", Front(known.front))
    monkeypatch.setattr(Known, "again", counted)
    monkeypatch.setattr(CallGraph, "__call__", by_one)
    monkeypatch.setattr(Graph, "__call__", by_graph)
    monkeypatch.setattr(_ByAddress, "__call__", by_address)
    monkeypatch.setattr(_ByTriton, "__call__", by_triton)
    return counts


def random(*shape, seed, dtype=torch.bfloat16):
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(shape, device="cuda", generator=generator).mul_(shape[-1] ** -0.25).to(dtype)


def every(make):
    """What every rank has, in rank order."""
    return [make(rank) for rank in range(WORLD)]


def case(operator, seed, rank=None):
    """Arguments of a rank's call, and what it is to give, in fp32."""
    rank = dist.get_rank() if rank is None else rank
    if operator is ag_gemm:
        xs = every(lambda r: random(ROWS // WORLD, DEPTH, seed=1000 * seed + r))
        w = random(DEPTH, COLUMNS, seed=1000 * seed + 100 + rank)
        return (xs[rank], w), torch.cat(xs).float() @ w.float()
    if operator in (gemm_rs, gemm_ar):
        xs = every(lambda r: random(ROWS, DEPTH // WORLD, seed=1000 * seed + r))
        ws = every(lambda r: random(DEPTH // WORLD, COLUMNS, seed=1000 * seed + 100 + r))
        total = sum(x.float() @ w.float() for x, w in zip(xs, ws, strict=True))
        return (xs[rank], ws[rank]), total.chunk(WORLD)[rank] if operator is gemm_rs else total
    if operator in (a2a_gemm, ag_gemm_k):
        xs = every(lambda r: random(ROWS, DEPTH // WORLD, seed=1000 * seed + r))
        w = random(DEPTH, COLUMNS, seed=1000 * seed + 100 + rank)
        pieces = xs if operator is ag_gemm_k else [x.chunk(WORLD)[rank] for x in xs]
        return (xs[rank], w), torch.cat(pieces, 1).float() @ w.float()
    xs = every(lambda r: random(ROWS // WORLD, DEPTH, seed=1000 * seed + r))
    ws = every(lambda r: random(DEPTH, COLUMNS, seed=1000 * seed + 100 + r))
    return (xs[rank], ws[rank]), torch.cat(
        [x.float() @ w.chunk(WORLD, 1)[rank].float() for x, w in zip(xs, ws, strict=True)]
    )


def off(y, wanted):
    """How far a result is off, relative to the whole; NaN counts as far."""
    error = float((y.float() - wanted).norm() / wanted.norm())
    return error if error == error else float("inf")


OPERATORS = [ag_gemm, ag_gemm_k, gemm_rs, gemm_ar, a2a_gemm, gemm_a2a]


@pytest.mark.parametrize("operator", OPERATORS, ids=lambda o: o.__name__)
@pytest.mark.parametrize("given", [False, True], ids=["new results", "out"])
def test_repeated_calls_find_their_own_operands(operator, given, paths, graphs):
    """Results of several calls in flight are all right, whoever's memory they are in, on two streams in turn."""
    cases = [case(operator, seed) for seed in range(6)]
    outs = [torch.full_like(wanted, float("nan"), dtype=torch.bfloat16) for _, wanted in cases]
    torch.cuda.synchronize()
    other, found = torch.cuda.Stream(), []
    for number, ((x, w), _) in enumerate(cases):
        with torch.cuda.stream(other if number % 3 == 2 else torch.cuda.current_stream()):
            found.append(operator(x, w, out=outs[number] if given else None, **HOW))
    torch.cuda.synchronize()
    wrong = {
        n: off(y, wanted) for n, (y, (_, wanted)) in enumerate(zip(found, cases, strict=True)) if off(y, wanted) > 1e-2
    }
    assert not wrong, f"{operator.__name__}: calls {wrong}; {paths}"
    assert paths["repeated"] >= 5, f"the short way was not taken: {paths}"
    assert paths["by address"] + 2 * paths["whole"] >= 10, paths
    assert (paths["whole"] >= 4) == (graphs == "whole calls"), paths
    assert (paths["in C"] >= 3) == (graphs == "whole calls"), paths
    if operator is gemm_rs and WORLD > 1:
        assert (paths["by graph"] >= 5) == (graphs == "lanes in graphs"), paths


@pytest.mark.parametrize("wide", [False, True], ids=["one piece", "rows"])
def test_repeated_pushes_read_the_tensor_of_their_own_call(wide, paths, graphs):
    """Each call brings another tensor, overwritten right behind it; rows of wider tensors are pushed by calls of the driver."""
    room = 64 if wide else 0
    cases = [case(ag_gemm, seed) for seed in range(6)]
    held = [torch.full((ROWS // WORLD, DEPTH + room), float("nan"), device="cuda").bfloat16() for _ in cases]
    torch.cuda.synchronize()
    found = []
    for number, ((x, w), _) in enumerate(cases):
        mine = held[number][:, :DEPTH]
        mine.copy_(x)
        found.append(ag_gemm(mine, w, plan="all_gather_1d_push", **HOW))
        held[number].fill_(float("nan"))
    torch.cuda.synchronize()
    errors = [off(y, wanted) for y, (_, wanted) in zip(found, cases, strict=True)]
    assert max(errors) < 1e-2, (errors, paths)
    assert paths["repeated"] >= 5, paths
    if not wide:
        assert (paths["whole"] >= 3) == (graphs == "whole calls"), paths


def test_a_slow_rank_is_waited_for_by_repeated_calls(paths):
    """A rank whose host comes late, and one whose device does, in the middle of repeated calls."""
    cases = [case(gemm_rs, seed) for seed in range(4)]
    gathers = [case(ag_gemm, seed) for seed in range(4)]
    torch.cuda.synchronize()
    found = []
    for number in range(4):
        if dist.get_rank() == number % WORLD:
            time.sleep(0.02)
            torch.cuda._sleep(20_000_000)
        found.append((gemm_rs(*cases[number][0], **HOW), ag_gemm(*gathers[number][0], **HOW)))
    torch.cuda.synchronize()
    for number, (y, z) in enumerate(found):
        assert off(y, cases[number][1]) < 1e-2 and off(z, gathers[number][1]) < 1e-2, (number, paths)


@pytest.mark.parametrize("operator", [ag_gemm, gemm_ar], ids=lambda o: o.__name__)
def test_many_calls_on_two_streams_with_delays(operator, paths):
    """Operands take turns, and more calls are in flight than there are; each has its own result."""
    cases = [case(operator, seed) for seed in range(3)]
    outs = [torch.full_like(cases[n % 3][1], float("nan"), dtype=torch.bfloat16) for n in range(60)]
    streams = [torch.cuda.Stream(), torch.cuda.current_stream()]
    torch.cuda.synchronize()
    for number, out in enumerate(outs):
        with torch.cuda.stream(streams[number % 2]):
            delay(number, dist.get_rank())
            operator(*cases[number % 3][0], out=out, **HOW)
    torch.cuda.synchronize()
    errors = [off(out, cases[number % 3][1]) for number, out in enumerate(outs)]
    assert max(errors) < 1e-2, ([n for n, error in enumerate(errors) if not error < 1e-2], paths)


@pytest.mark.ranks(2)
def test_a_rank_that_comes_too_late_to_a_repeated_call(group, paths, monkeypatch):
    """The others' grids drain and say what they waited for, now and at every later call, until all release."""
    monkeypatch.setenv("OVERLAP_DEADLINE_S", "2")
    (x, w), wanted = case(gemm_rs, 0)
    for _ in range(4):
        found = gemm_rs(x, w, group=group, **HOW)
    check(group)
    late = dist.get_rank() == WORLD - 1
    if late:
        time.sleep(6)
    try:
        gemm_rs(x, w, group=group, **HOW)
        with pytest.raises(DeadlineError, match="waited 2 s"):
            check(group)
        with pytest.raises(DeadlineError, match="waited 2 s"):
            gemm_rs(x, w, group=group, **HOW)
    except pytest.fail.Exception:
        assert late  # it found what it waited for, or not
    monkeypatch.setenv("OVERLAP_DEADLINE_S", "60")
    release(group)
    again = [gemm_rs(x, w, group=group, **HOW) for _ in range(4)]
    check(group)
    assert max(off(y, wanted) for y in [found, *again]) < 1e-2, paths


def test_several_weights_and_the_gathered_tensor(paths):
    for seed in range(3):
        (x, w), wanted = case(ag_gemm, seed)
        small = random(DEPTH, 64, seed=7 + seed)
        (y, z), whole = ag_gemm(x, [w, small], return_gathered=True, **HOW)
        torch.cuda.synchronize()
        assert off(y, wanted) < 1e-2 and off(z, whole.float() @ small.float()) < 1e-2, (seed, paths)
        assert torch.equal(whole.chunk(WORLD)[dist.get_rank()], x), (seed, paths)
    assert paths["repeated"] == 2, paths


def test_a_training_step_takes_the_short_way(paths):
    """Forward and backward under autograd; the gradients are those of the first step's data."""
    for seed in range(3):
        (x, w), _ = case(ag_gemm, seed)
        x.requires_grad_(), w.requires_grad_()
        y = ag_gemm(x, w, **HOW)
        y.backward(torch.ones_like(y))
        torch.cuda.synchronize()
        xs = [random(ROWS // WORLD, DEPTH, seed=1000 * seed + r) for r in range(WORLD)]
        wanted = torch.cat(xs).float().sum(0, keepdim=True).t().expand(DEPTH, COLUMNS)
        assert off(w.grad, wanted) < 2e-2, (seed, off(w.grad, wanted), paths)
    assert paths["repeated"] >= 2, paths


def test_a_capture_of_a_repeated_call_replays_on_new_data(paths):
    """The short way may be captured, and calls before, between and behind replays stay in order."""
    (x, w), _ = case(gemm_rs, 0)
    for _ in range(3):
        gemm_rs(x, w, **HOW)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        y = gemm_rs(x, w, **HOW)
    for seed in range(1, 5):
        (fresh, _), _ = case(gemm_rs, seed)
        x.copy_(fresh)
        total = sum(
            random(ROWS, DEPTH // WORLD, seed=1000 * seed + r).float()
            @ random(DEPTH // WORLD, COLUMNS, seed=100 + r).float()
            for r in range(WORLD)
        )
        y.fill_(float("nan"))
        graph.replay()
        eager = gemm_rs(x, w, **HOW)
        torch.cuda.synchronize()
        wanted = total.chunk(WORLD)[dist.get_rank()]
        assert off(y, wanted) < 1e-2 and off(eager, wanted) < 1e-2, (seed, off(y, wanted), off(eager, wanted), paths)


def test_a_capture_of_the_first_repetition_leaves_later_ones_their_graphs(paths, graphs):
    """What a capture cannot make ready is made by the next call outside of it."""
    cases = [case(gemm_rs, 0), *(case(gemm_rs, seed) for seed in range(4, 6))]
    columns = slice(0, COLUMNS - 8)  # a shape that no other test repeats
    calls = [(x, w[:, columns].contiguous(), wanted[:, columns]) for (x, w), wanted in cases]
    gemm_rs(*calls[0][:2], **HOW)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        captured = gemm_rs(*calls[0][:2], **HOW)
    before = dict(paths)
    found = [gemm_rs(x, w, **HOW) for x, w, _ in calls[1:]]
    graph.replay()
    torch.cuda.synchronize()
    errors = [off(y, wanted) for y, (_, _, wanted) in zip([captured, *found], calls, strict=True)]
    assert max(errors) < 1e-2, (errors, before, paths)
    assert paths["repeated"] == before["repeated"] + 2, (before, paths)
    assert (paths["by graph"] > before["by graph"]) == (graphs == "lanes in graphs" and WORLD > 1), (before, paths)
    assert (paths["whole"] > before["whole"]) == (graphs == "whole calls"), (before, paths)


def test_launches_of_a_compiled_kernel_take_the_short_way(paths, repo):
    """As `kernel[grid](...)`, with a grid that is another function each time; results are pieces of a sum."""
    module = load_module(str(repo / "templates" / "kernels" / "grouped_gemm.py"))
    kernel = overlap.compile(plan="reduce_scatter_1d", on="c[M]", backend="copy_engine")(module.matmul_kernel)
    cases = [case(gemm_rs, seed) for seed in range(5)]
    depth = DEPTH // WORLD
    strides = dict(stride_am=depth, stride_ak=1, stride_bk=COLUMNS, stride_bn=1, stride_cm=COLUMNS, stride_cn=1)
    blocks = dict(BLOCK_M=128, BLOCK_N=128, BLOCK_K=64, GROUP_M=8)
    found = [torch.full_like(wanted, float("nan"), dtype=torch.bfloat16) for _, wanted in cases]
    torch.cuda.synchronize()
    for ((x, w), _), c in zip(cases, found, strict=True):
        tiles = -(-ROWS // 128) * -(-COLUMNS // 128)
        kernel[lambda meta, tiles=tiles: (tiles,)](x, w, c, M=ROWS, N=COLUMNS, K=depth, **strides, **blocks)
    torch.cuda.synchronize()
    errors = [off(c, wanted) for c, (_, wanted) in zip(found, cases, strict=True)]
    assert max(errors) < 1e-2, (errors, kernel.last_plan, paths)
    assert paths["repeated"] == 4, (kernel.last_plan, paths)


@pytest.mark.parametrize("way", ["gather, pull", "scatter", "reduce, two shots", "exchange before"])
def test_calls_of_a_host_function_take_the_short_way(way, generated, group, paths):
    """The body of the template is plain; each call has operands of its own."""
    module = generated(template("grouped_gemm"), *WAYS[way])
    product = Product(group, 515, 136, 96, torch.float16, on=WAYS[way][1])
    found = [product.call(module, seed) for seed in range(6)]
    torch.cuda.synchronize()
    assert not any(bool(product.wrong(*each)) for each in found), paths
    assert paths["repeated"] == 5, paths
    check(group)


def test_memory_that_grows_between_repeated_calls(paths):
    """A larger shape moves the workspace; the smaller one is bound to the new memory, and right before and after."""
    (x, w), wanted = case(gemm_ar, 0)
    for _ in range(3):
        assert off(gemm_ar(x, w, **HOW), wanted) < 1e-2
    large = random(4 * ROWS, DEPTH // WORLD, seed=dist.get_rank())
    gemm_ar(large, w, **HOW)
    before = paths["repeated"]
    assert all(off(gemm_ar(x, w, **HOW), wanted) < 1e-2 for _ in range(3)), paths
    assert paths["repeated"] == before + 2, paths
    overlap.release()
    assert off(gemm_ar(x, w, **HOW), wanted) < 1e-2, paths


def test_a_repeated_call_from_a_thread_that_has_no_context_yet(paths):
    (x, w), wanted = case(gemm_rs, 0)
    gemm_rs(x, w, **HOW)
    torch.cuda.synchronize()
    found = []

    def work():
        torch.cuda.set_device(x.device)
        found.append(gemm_rs(x, w, **HOW))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    torch.cuda.synchronize()
    assert found and off(found[0], wanted) < 1e-2, (found, paths)


def test_a_repeated_call_refuses_what_the_first_would(paths):
    (x, w), wanted = case(gemm_rs, 0)
    y = torch.empty_like(wanted, dtype=torch.bfloat16)
    gemm_rs(x, w, out=y, **HOW)
    with pytest.raises(UsageError, match="shares memory"):
        gemm_rs(x, w, out=x.view(-1)[: y.numel()].view(y.shape), **HOW)
    with pytest.raises(UsageError, match="cpu"):
        gemm_rs(x, w.cpu(), out=y, **HOW)
    with pytest.raises((UsageError, RuntimeContractError)):
        gemm_rs(x[:, :-1], w, out=y, **HOW)
    gemm_rs(x, w, out=y, **HOW)
    torch.cuda.synchronize()
    assert off(y, wanted) < 1e-2
