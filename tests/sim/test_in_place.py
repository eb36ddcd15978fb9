"""Ranks that read their own part of an input where its caller has it: which calls do, and that their results are right."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from overlap.annotate.source import SourceUnit
from overlap.chunkplan.region import shard_interval
from overlap.errors import OverlapError
from overlap.ops import a2a_gemm, ag_gemm, last_plan
from overlap.ops.gather_call import compiled_kernel
from overlap.ops.kernels import ag_gemm_tma
from overlap.ops.products import Product, product_arguments
from overlap.ops.views import GatherView
from overlap.pipeline import Request, compile_source
from overlap.runtime.launch import givens as givens_layer
from overlap.runtime.launch import in_place as in_place_layer
from overlap.runtime.launch import launch as launch_layer
from overlap.runtime.memory.part import Part
from overlap.schedule import runs as runs_layer
from overlap.sim import World, check_module

pytestmark = pytest.mark.one_triton

PUSH, PULL = "all_gather_1d_push", "all_gather_1d"


class Seen:
    """What ranks did in calls that went the long way. ``taken``: by rank, what it answered; ``staged``: elements it staged."""

    def __init__(self) -> None:
        self.taken: dict[int, set[bool]] = {}
        self.staged: dict[int, set[int]] = {}

    @property
    def ranks(self) -> list[int]:
        """Those that read their own part where its caller has it, in every call."""
        return sorted(rank for rank, found in self.taken.items() if found == {True})


@pytest.fixture(autouse=True)
def seen(monkeypatch):
    """Shards of any size and rows of any width are pushed as they are."""
    monkeypatch.setenv("OVERLAP_GIVEN_BYTES", "0")
    monkeypatch.setenv("OVERLAP_TAIL", "never")
    monkeypatch.setattr(givens_layer, "WIDE", 1)
    found, own_arguments, staged = Seen(), launch_layer.own_arguments, Part.staged

    def answered(instance, *rest):
        own = own_arguments(instance, *rest)
        found.taken.setdefault(instance.runtime.rank, set()).add(own.taken)
        return own

    def watched(part, *rest):
        for stage in staged(part, *rest):
            found.staged.setdefault(part._runtime.rank, set()).add(stage.to.numel())
            yield stage

    monkeypatch.setattr(launch_layer, "own_arguments", answered)
    monkeypatch.setattr(Part, "staged", watched)
    return found


@dataclass(frozen=True)
class Case:
    """Calls in a row, each of another input over a poisoned result: ``ag_gemm`` of ``shape`` along ``dim``, or ``a2a_gemm``.

    ``pitch``: elements behind each row of a shard that are none of it. ``more``: further options of the call.
    """

    world: int
    shape: tuple[int, ...]
    dim: int = 0
    columns: int = 40
    exchange: bool = False
    calls: int = 3
    pitch: int = 0
    sms: int = 4
    more: tuple[tuple[str, Any], ...] = (("plan", PUSH),)

    def shard(self, x, rank):
        """The rank's piece, with its rows ``pitch`` apart, in memory that nothing else lies in."""
        dim = x.dim() - 1 if self.exchange else self.dim
        low, high = shard_interval(x.shape[dim], self.world, rank)
        mine = x.narrow(dim, low, high - low)
        wider = torch.full((*mine.shape[:-1], mine.shape[-1] + self.pitch), float("nan"), dtype=x.dtype)
        wider[..., : mine.shape[-1]] = mine
        return wider[..., : mine.shape[-1]]

    def wanted(self, x, w, rank):
        y = x.double() @ w.double()
        return y.narrow(self.dim, *_length(shard_interval(x.shape[self.dim], self.world, rank))) if self.exchange else y


def _length(interval):
    low, high = interval
    return low, high - low


def results(case, seed=0):
    """By rank, the results of all calls; each is checked against fp64."""
    generator = torch.Generator().manual_seed(seed)
    xs = [torch.randn(case.shape, generator=generator).half() for _ in range(case.calls)]
    ws = [torch.randn(case.shape[-1], case.columns, generator=generator).half() for _ in range(case.world)]
    more = dict(case.more)

    def body(group):
        runtime = group.overlap_runtime
        rank, found = runtime.rank, []
        for x in xs:
            mine = case.shard(x, rank)
            out = torch.full(tuple(case.wanted(x, ws[rank], rank).shape), float("nan"), dtype=torch.float16)
            options = {"out": out, "group": group, "backend": "copy_engine", **more}
            if case.exchange:
                found.append(a2a_gemm(mine, ws[rank], scatter_dim=case.dim, **options))
            else:
                found.append(ag_gemm(mine, ws[rank], gather_dim=case.dim, gather_size=case.shape[case.dim], **options))
            runtime.fill(mine, torch.full_like(mine, float("nan")))  # as soon as the stream lets it
        runtime.synchronize()
        return [y.clone() if isinstance(y, torch.Tensor) else [y[0].clone(), y[1].clone()] for y in found]

    made = World(case.world, seed=seed, sms=case.sms).run(body)
    for rank, ys in enumerate(made):
        for y, x in zip(ys, xs, strict=True):
            product = y if isinstance(y, torch.Tensor) else y[0]
            torch.testing.assert_close(product.double(), case.wanted(x, ws[rank], rank), atol=4e-2, rtol=1e-2)
            assert isinstance(y, torch.Tensor) or torch.equal(y[1], x)
    return made


EXCHANGE = (("split", "1:3:4"),)

GATHERS = {
    "one rank": (Case(1, (200, 48)), [0]),
    "even": (Case(2, (256, 48)), [0, 1]),
    "three ranks, more columns than a tile": (Case(3, (384, 32), columns=264), [0, 1, 2]),
    "four ranks": (Case(4, (512, 16)), [0, 1, 2, 3]),
    "five ranks, the last short": (Case(5, (636, 16)), [0, 1, 2, 3, 4]),
    "five ranks, tiles of two": (Case(5, (600, 16)), []),
    "a tile of rows of two ranks": (Case(2, (300, 48)), []),
    "ranks without rows": (Case(5, (3, 48)), []),
    "two batches": (Case(2, (2, 128, 48), dim=1), [0, 1]),
    "ranks hold whole matrices": (Case(3, (5, 64, 16), dim=0), [0, 1, 2]),
    "ranks hold whole matrices, one none": (Case(4, (5, 64, 16), dim=0), [0, 1, 2]),
    "rows that lie apart": (Case(2, (256, 48), pitch=8), [0, 1]),
    "rows that TMA does not take": (Case(2, (256, 48), pitch=3), []),
}

EXCHANGES = {
    "one rank": (Case(1, (100, 64), exchange=True, more=EXCHANGE), [0]),
    "even": (Case(2, (64, 256), exchange=True, more=EXCHANGE), [0, 1]),
    "ragged rows": (Case(3, (50, 384), exchange=True, more=EXCHANGE), [0, 1, 2]),
    "more columns than a tile": (Case(2, (300, 256), columns=264, exchange=True, more=EXCHANGE), [0, 1]),
    "five ranks, two without rows": (Case(5, (3, 640), exchange=True, more=EXCHANGE), [0, 1, 2]),
    "nine ranks, the last piece of K short": (Case(9, (18, 1144), exchange=True, more=EXCHANGE), list(range(9))),
    "one row, a short piece of K": (Case(1, (1, 40), exchange=True, more=EXCHANGE), [0]),
    "a block of columns of two ranks": (Case(2, (64, 160), exchange=True, more=EXCHANGE), []),
    "rows that lie apart": (Case(2, (64, 256), exchange=True, pitch=16, more=EXCHANGE), [0, 1]),
}


@pytest.mark.parametrize("name", GATHERS)
def test_a_gathers_own_rows_are_read_where_the_caller_has_them(name, seen):
    case, ranks = GATHERS[name]
    results(case, seed=len(name))
    assert seen.ranks == ranks
    for rank in ranks:
        assert not seen.staged.get(rank), "nothing is staged"
    staging = [
        r
        for r in range(case.world)
        if r not in ranks and _length(shard_interval(case.shape[case.dim], case.world, r))[1]
    ]
    assert all(seen.staged.get(rank) for rank in staging)


@pytest.mark.parametrize("name", EXCHANGES)
def test_an_exchanges_own_columns_are_read_where_the_caller_has_them(name, seen):
    case, ranks = EXCHANGES[name]
    results(case, seed=len(name))
    assert seen.ranks == ranks
    assert not any(seen.staged.get(rank) for rank in ranks)


@pytest.mark.parametrize("case", [GATHERS["even"][0], EXCHANGES["ragged rows"][0]])
def test_the_bits_are_those_of_what_is_staged(case, seen, monkeypatch):
    here = results(case)
    monkeypatch.setenv("OVERLAP_IN_PLACE", "0")
    seen.taken.clear()
    staged = results(case)
    assert seen.taken and not seen.ranks and all(seen.staged.get(rank) for rank in range(case.world))
    for one, other in zip(here, staged, strict=True):
        assert all(map(torch.equal, one, other))


@pytest.mark.parametrize(
    "more",
    [
        {"plan": "all_gather_1d"},
        {"plan": "all_gather_1d_pull"},
        {"plan": PUSH, "return_gathered": True},
        {"plan": PUSH, "backend": "ldst_reserved", "comm_sms": 1},
        {"plan": PUSH, "backend": "tma_inline"},
    ],
    ids=lambda more: "-".join(map(str, more.values())),
)
def test_where_others_read_it_too_it_is_staged(more, seen):
    """Peers that pull, programs that move, and whoever is given what was gathered."""
    results(replace(GATHERS["even"][0], more=tuple(more.items())))
    assert not seen.ranks and seen.staged


def test_parts_of_a_shard_are_pushed_one_by_one(seen):
    results(replace(GATHERS["four ranks"][0], more=(("plan", PUSH), ("split", (3, 1)))))
    assert seen.ranks == [0, 1, 2, 3]


def test_small_shards_are_staged(seen, monkeypatch):
    case = GATHERS["even"][0]
    monkeypatch.setenv("OVERLAP_GIVEN_BYTES", str(128 * 48 * 2 + 1))
    results(case)
    assert not seen.ranks
    monkeypatch.setenv("OVERLAP_GIVEN_BYTES", str(128 * 48 * 2))
    seen.taken.clear()
    results(case)
    assert seen.ranks == [0, 1]


@pytest.mark.parametrize(
    ("case", "plan", "ranks"),
    [
        (GATHERS["even"][0], PUSH, [0, 1]),
        (GATHERS["five ranks, the last short"][0], PUSH, [0, 1, 2, 3, 4]),
        (GATHERS["ranks hold whole matrices, one none"][0], PUSH, [0, 1, 2]),
        (GATHERS["rows that TMA does not take"][0], PUSH, []),
        (replace(GATHERS["even"][0], more=(("split", 2),)), PUSH, [0, 1]),
        (GATHERS["one rank"][0], PULL, [0]),
        (GATHERS["a tile of rows of two ranks"][0], PULL, []),
        (GATHERS["two batches"][0], PULL, []),
        (replace(GATHERS["even"][0], more=(("return_gathered", True),)), PULL, []),
        (replace(GATHERS["even"][0], more=(("plan", PULL),)), PULL, []),
        (replace(GATHERS["even"][0], more=(("backend", "ldst_reserved"), ("comm_sms", 1))), PULL, []),
    ],
    ids=str,
)
def test_calls_that_name_no_plan_push_where_sizes_let_tiles_read_in_place(case, plan, ranks, seen, monkeypatch):
    """Whatever a rank's own x is like: ranks must all push. Copies of rows, in batches, are pulled."""
    case = replace(case, more=tuple(each for each in case.more if each != ("plan", PUSH)))
    results(case)
    assert last_plan("ag_gemm").plan == plan and seen.ranks == ranks
    monkeypatch.setenv("OVERLAP_IN_PLACE", "0")
    results(replace(case, calls=1))
    assert last_plan("ag_gemm").plan == PULL


def test_large_shards_alone_are_pushed_by_calls_that_name_no_plan(monkeypatch):
    case = replace(GATHERS["even"][0], calls=1, more=())
    for least, plan in ((128 * 48 * 2, PUSH), (128 * 48 * 2 + 1, PULL)):
        monkeypatch.setenv("OVERLAP_GIVEN_BYTES", str(least))
        results(case)
        assert last_plan("ag_gemm").plan == plan


def test_a_rank_whose_shard_tma_cannot_read_pushes_what_it_stages(seen):
    """The others do not know."""
    x, w = torch.randn(256, 48).half(), torch.randn(48, 40).half()

    def body(group):
        runtime = group.overlap_runtime
        low, high = shard_interval(256, 2, runtime.rank)
        wider = torch.full((high - low, 48 + 3 * runtime.rank), float("nan")).half()
        wider[:, :48] = x[low:high]
        y = ag_gemm(wider[:, :48], w, group=group, backend="copy_engine")
        runtime.synchronize()
        return y.clone()

    for y in World(2).run(body):
        torch.testing.assert_close(y.double(), x.double() @ w.double(), atol=4e-2, rtol=1e-2)
    assert last_plan("ag_gemm").plan == PUSH and seen.ranks == [0] and seen.staged.get(1)


def test_several_weights_read_what_was_gathered(seen):
    x, ws = torch.randn(256, 32).half(), [torch.randn(32, n).half() for n in (24, 40)]

    def body(group):
        low, high = shard_interval(256, 2, group.overlap_runtime.rank)
        found = ag_gemm(x[low:high].clone(), ws, group=group, plan=PUSH, backend="copy_engine")
        group.overlap_runtime.synchronize()
        return [y.clone() for y in found]

    for ys in World(2).run(body):
        for y, w in zip(ys, ws, strict=True):
            torch.testing.assert_close(y.double(), x.double() @ w.double(), atol=4e-2, rtol=1e-2)
    assert not seen.ranks


@pytest.mark.parametrize(
    ("case", "left", "ranks"),
    [
        (Case(2, (512, 48), columns=520, sms=5), 2, [0, 1]),
        (Case(1, (512, 48), columns=520, sms=5), 2, []),
        (replace(EXCHANGES["more columns than a tile"][0], columns=520, sms=4), 2, []),
    ],
)
def test_a_second_launch_of_the_last_tiles_reads_nothing_that_is_not_staged(case, left, ranks, seen, monkeypatch):
    """Its tiles are not the rank's own where others arrive; of an exchange every tile reads some of the rank's own."""
    monkeypatch.setenv("OVERLAP_TAIL", "always")
    results(case)
    assert last_plan("a2a_gemm" if case.exchange else "ag_gemm").tail == left
    assert seen.ranks == ranks


def test_calls_on_two_streams_alternate_and_reuse_their_inputs(seen):
    world, rows, calls = 2, 256, 6
    xs = [torch.randn(rows, 16).half() for _ in range(calls)]
    w = torch.randn(16, 24).half()

    def body(group):
        runtime = group.overlap_runtime
        inputs, found = [torch.zeros(rows // world, 16).half() for _ in range(2)], []
        low, high = shard_interval(rows, world, runtime.rank)
        for call in range(calls):
            with runtime.on_stream(f"caller {call % 2}"):
                mine = inputs[call % 2]
                runtime.fill(mine, xs[call][low:high])
                found.append(ag_gemm(mine, w, group=group, backend="copy_engine", plan=PUSH))
                runtime.fill(mine, torch.full_like(mine, float("nan")))
        for stream in range(2):
            with runtime.on_stream(f"caller {stream}"):
                runtime.synchronize()
        return [y.clone() for y in found]

    for seed in range(2):
        for ys in World(world, seed=seed).run(body):
            for y, x in zip(ys, xs, strict=True):
                torch.testing.assert_close(y.double(), x.double() @ w.double(), atol=4e-2, rtol=1e-2)
    assert seen.ranks == [0, 1]


def is_wrong(case):
    """Whether calls fail, or answer something else than the product."""
    try:
        results(case)
    except (OverlapError, AssertionError):
        return True
    return False


@pytest.mark.parametrize("name", ["a tile of rows of two ranks", "a block of columns of two ranks"])
def test_tiles_of_two_ranks_chunks_need_it_staged(name, monkeypatch):
    """What keeps such calls from it, taken away."""
    case, _ = {**GATHERS, **EXCHANGES}[name]
    assert not is_wrong(case)
    monkeypatch.setattr(in_place_layer, "_nobody_else", lambda *_: True)
    assert is_wrong(case)
    monkeypatch.setattr(runs_layer, "reading", lambda runs, alone, graph: tuple(alone))
    assert is_wrong(case)


@pytest.mark.parametrize("case", [GATHERS["even"][0], EXCHANGES["even"][0]])
@pytest.mark.parametrize("by", [-1, 1])
def test_a_wrong_place_is_found(case, by, monkeypatch):
    """Where the part lies in what the kernel sees, elements off."""
    place = in_place_layer._place

    def moved(instance, box, part):
        if box is None:
            return place(instance, box, part)
        far = tuple(8 * by * (d == instance.operator.comms[0].dim) for d in range(box.ndim))
        return place(instance, box.translate(far), part)

    monkeypatch.setattr(in_place_layer, "_place", moved)
    assert is_wrong(case)


def test_peers_that_pull_need_it_staged(monkeypatch):
    case = replace(GATHERS["even"][0], more=(("plan", "all_gather_1d_pull"),))
    monkeypatch.setattr(in_place_layer, "all_given", lambda *_: True)
    assert is_wrong(case)


@pytest.mark.parametrize("world", [1, 2])
def test_what_lies_in_the_memory_of_a_result_is_staged_ahead_of_the_kernel(world, seen):
    """A decorated kernel's caller may have its shard in the rows of the result that are its own: tiles write there, while copies
    and other tiles would still read it."""
    m, k = 256, 128
    x, w = torch.randn(m, k).half(), torch.randn(k, k).half() / 8
    kernel = compiled_kernel(ag_gemm_tma, "M", PUSH, 1)

    def body(group):
        runtime = group.overlap_runtime
        low, high = shard_interval(m, world, runtime.rank)
        found = []
        for inside in (True, False):
            y = torch.full((1, m, k), float("nan"), dtype=torch.float16)
            shard = y[:, low:high] if inside else torch.empty(1, high - low, k, dtype=torch.float16)
            shard.copy_(x[None, low:high])
            view = GatherView((m, k), 1, m, k, "M")
            _, grid, arguments = product_arguments(Product(w, y, None), shard, view, runtime, tma=True)
            kernel.launch(grid, (), arguments, group=group, backend="copy_engine")
            found.append(y)
        runtime.synchronize()
        return [y.clone() for y in found]

    for ys in World(world, seed=world).run(body):
        for y in ys:
            torch.testing.assert_close(y[0].double(), x.double() @ w.double(), atol=4e-2, rtol=1e-2)
    assert all(found == {False, True} for found in seen.taken.values()) and len(seen.taken) == world


@pytest.fixture
def generated(repo, tmp_path, monkeypatch):
    """A host function that makes its descriptors itself, their boxes, of 32 x 32, set by an autotuner's hook."""
    monkeypatch.chdir(repo)

    def make(plan, on):
        source = SourceUnit.from_file(repo / "tests" / "kernels" / "host_descriptors.py")
        path = tmp_path / "made.py"
        path.write_text(compile_source(Request(source, plan, on)).module.text)
        return str(path)

    return make


@pytest.mark.parametrize(
    ("plan", "on", "shape", "ranks"),
    [
        (PUSH, "a[M]", {"M": 192, "N": 40, "K": 48}, [0, 1, 2]),
        (PUSH, "a[M]", {"M": 190, "N": 40, "K": 48}, [0, 1, 2]),
        (PUSH, "a[M]", {"M": 180, "N": 40, "K": 48}, []),
        (PULL, "a[M]", {"M": 192, "N": 40, "K": 48}, []),
        (PUSH, "a[K/M]", {"M": 70, "N": 40, "K": 192}, [0, 1, 2]),
        ("all_to_all_1d_push", "a[K:M]", {"M": 70, "N": 40, "K": 192}, [0, 1, 2]),
        ("all_to_all_1d_push", "a[K:M]", {"M": 70, "N": 40, "K": 240}, [2]),
    ],
)
def test_generated_host_functions(plan, on, shape, ranks, generated, seen):
    report = check_module(generated(plan, on), world=3, shape=shape, dtype="fp16", seeds=range(2), launches=3)
    assert report.ok, str(report)
    assert seen.ranks == ranks


TWICE = (
    ("gemm_tma(a_desc, b_desc, c_desc, M,", "gemm_tma(a_desc, b_desc, c_desc, a_ptr, M,"),
    ("gemm_tma[grid](a_desc, b_desc, c_desc, M,", "gemm_tma[grid](a_desc, b_desc, c_desc, a, M,"),
    (
        "        c_desc.store(",
        "        rows_m = pid_m * BM + tl.arange(0, BM)\n"
        "        acc += tl.load(a_ptr + rows_m * K, mask=rows_m < M, other=0.0).to(tl.float32)[:, None]\n"
        "        c_desc.store(",
    ),
)
"""Has a kernel add to its product what it reads of the same rows by pointer."""


def test_a_tensor_that_the_kernel_is_passed_twice_is_staged(repo, tmp_path, monkeypatch, seen):
    """By pointer it reads in symmetric memory."""
    monkeypatch.chdir(repo)
    text = (repo / "tests" / "kernels" / "host_descriptors.py").read_text()
    for old, new in TWICE:
        assert text.count(old) == 1
        text = text.replace(old, new)
    source, made = tmp_path / "twice.py", tmp_path / "made.py"
    source.write_text(text)
    made.write_text(compile_source(Request(SourceUnit.from_file(source), PUSH, "a[M]")).module.text)
    shape = {"M": 192, "N": 40, "K": 48}
    report = check_module(str(made), world=3, shape=shape, dtype="fp16", seeds=range(2), launches=2)
    assert report.ok, str(report)
    assert not seen.ranks and len(seen.staged) == 3
