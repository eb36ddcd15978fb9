"""Calls of compiled host functions that repeat an earlier one, on simulated ranks: their body is not run again."""

from __future__ import annotations

import pytest
import torch

from overlap.codegen.module_io import load_module
from overlap.errors import RuntimeContractError, UsageError
from overlap.runtime.repeat.known_calls import Known
from overlap.sim import World
from overlap.sim.inputs import make_inputs
from overlap.sim.oracle import wanted_results

pytestmark = pytest.mark.one_triton

SIZES = {"M": 37, "N": 24, "K": 16}


@pytest.fixture(autouse=True)
def repeated(monkeypatch):
    """One entry a call of a rank that was repeated."""
    found: list[int] = []
    again = Known.again

    def watched(self, *call):
        results = again(self, *call)
        if results is not None:
            found.append(len(results))
        return results

    monkeypatch.setattr(Known, "again", watched)
    return found


def run(module, world, calls=3, outs=False, seed=0):
    """Calls with operands of their own, all of them in flight before any is read; each result must be right."""
    operator = module.OL_OPERATOR
    cases = make_inputs(operator, SIZES, torch.float32, world, calls)
    wanted = [
        wanted_results(operator, [(call.whole["a"].double() @ call.whole["b"].double(),) for call in ranks], SIZES)
        for ranks in cases
    ]

    def body(group):
        rank, found = group.overlap_runtime.rank, []
        for number, ranks in enumerate(cases):
            out = torch.empty(wanted[number][rank][0].values.shape) if outs else None
            found.append(module.matmul(**ranks[rank].passed, group=group, sizes=SIZES, out=out))
            assert out is None or found[-1] is out
        group.overlap_runtime.synchronize()
        return [c.clone() for c in found]

    for rank, results in enumerate(World(world, seed=seed).run(body)):
        for number, c in enumerate(results):
            (expected,) = wanted[number][rank]
            torch.testing.assert_close(c.double(), expected.values.double(), rtol=1e-4, atol=1e-4)


WAYS = {
    "gather": ("all_gather_1d", "a[M]"),
    "gather in the loop": ("all_gather_1d", "a[K]"),
    "scatter": ("reduce_scatter_1d", "c[M]"),
    "reduce": ("all_reduce_two_shot", "c[]"),
    "exchange before": ("all_to_all_1d", "a[K:M]"),
    "exchange after": ("all_to_all_1d", "c[M:N]"),
}


@pytest.mark.parametrize("way", WAYS)
def test_repeated_calls_find_their_own_operands(way, compiled, repeated):
    plan, on = WAYS[way]
    module = load_module(str(compiled(plan=plan, on=on)))
    run(module, 3)
    assert repeated == [1] * 6
    run(module, 2, outs=True, calls=2)
    assert repeated == [1] * 8


@pytest.mark.parametrize(
    ("line", "times"),
    [
        ("assert M == a.size(0), f'{M} rows'", 2),
        ("ran.append(M)", 0),
        ("assert float(b[0, 0]) == float(b[0, 0])", 0),
    ],
    ids=["sizes alone", "something else", "data"],
)
def test_a_body_that_does_anything_else_runs_each_time(line, times, compiled, repeated):
    made = "    _, N = b.shape\n"
    module = load_module(str(compiled(edits=((made, f"{made}    {line}\n"),))))
    module.ran = []
    run(module, 2, calls=2)
    assert len(repeated) == times and len(module.ran) == (4 if "ran" in line else 0)


def test_another_value_of_a_global_is_another_call(compiled, repeated):
    module = load_module(str(compiled(edits=(("BLOCK_M=64", "BLOCK_M=ROWS"),))))
    cases = make_inputs(module.OL_OPERATOR, SIZES, torch.float32, 1, 4)

    def body(group):
        for module.ROWS, ranks in zip((64, 32, 64, 32), cases, strict=True):
            c = module.matmul(**ranks[0].passed, group=group, sizes=SIZES)
            group.overlap_runtime.synchronize()
            torch.testing.assert_close(c, ranks[0].whole["a"] @ ranks[0].whole["b"], rtol=1e-4, atol=1e-4)
            yield len(repeated)

    assert World(1, seed=0).run(lambda group: list(body(group))) == [[0, 0, 1, 2]]


def test_what_the_first_call_refuses_later_ones_refuse(compiled, repeated):
    module = load_module(str(compiled(plan="reduce_scatter_1d", on="c[M]")))
    (case,) = make_inputs(module.OL_OPERATOR, SIZES, torch.float32, 1, 1)

    def body(group):
        passed = case[0].passed
        for _ in range(2):
            module.matmul(**passed, group=group, sizes=SIZES)
            with pytest.raises(RuntimeContractError, match="has shape"):
                module.matmul(**passed, group=group, sizes=SIZES, out=torch.empty(3, 3))
            with pytest.raises(RuntimeContractError):
                module.matmul(**passed, group=group, sizes={**SIZES, "M": 99})
            with pytest.raises(UsageError, match="sizes is a list"):
                module.matmul(**passed, group=group, sizes=[37, 24, 16])

    World(1, seed=0).run(body)
    assert len(repeated) == 1


TWICE = (
    ("    c_ptr,\n    M,", "    c_ptr,\n    d_ptr,\n    M,"),
    ("        c,\n        M,", "        c,\n        d,\n        M,"),
    ("(ol_call, a, b)", "(ol_call, a, b, d)"),
    ("matmul(a, b, *", "matmul(a, b, d, *"),
    ('{"a": a, "b": b}, group', '{"a": a, "b": b, "d": d}, group'),
    (
        "    c_ptrs = ",
        "    inside = (offs_m[:, None] < M) & (offs_n[None, :] < N)\n"
        "    tl.store(d_ptr + offs_m[:, None] * N + offs_n[None, :], acc, mask=inside)\n    c_ptrs = ",
    ),
)
"""Has a kernel store its result in a further tensor as well, which the caller passes."""


@pytest.mark.parametrize("plan", ["all_gather_1d", "all_gather_1d_push"])
def test_a_shard_in_the_memory_of_what_else_the_kernel_writes_goes_the_long_way(plan, compiled, repeated):
    module = load_module(str(compiled(plan=plan, edits=TWICE)))
    rows, width, world = 64, 16, 2
    generator = torch.Generator().manual_seed(1)
    xs, w = [torch.randn(rows, width, generator=generator) for _ in range(4)], torch.eye(width).flip(0)

    def body(group):
        rank, found = group.overlap_runtime.rank, []
        for n, x in enumerate(xs):
            here, second = x.chunk(world)[rank].clone(), torch.full((rows, width), float("nan"))
            inside = second.chunk(world)[rank].copy_(here)
            found += [module.matmul(inside if n % 2 else here, w, second, group=group), second]
        group.overlap_runtime.synchronize()
        return [y.clone() for y in found]

    for ys in World(world, seed=0).run(body):
        for n, y in enumerate(ys):
            assert torch.equal(y, xs[n // 2] @ w)
    assert len(repeated) == world


def test_a_result_that_is_not_returned_as_it_is_made(compiled, repeated):
    """Whoever returns a view of it goes the long way, which makes the view."""
    module = load_module(str(compiled(edits=(("    return c\n", "    return c.t()\n"),))))
    cases = make_inputs(module.OL_OPERATOR, SIZES, torch.float32, 1, 2)

    def body(group):
        found = [module.matmul(**ranks[0].passed, group=group, sizes=SIZES) for ranks in cases]
        group.overlap_runtime.synchronize()
        return [c.clone() for c in found]

    (results,) = World(1, seed=0).run(body)
    for ranks, c in zip(cases, results, strict=True):
        torch.testing.assert_close(c.t(), ranks[0].whole["a"] @ ranks[0].whole["b"], rtol=1e-4, atol=1e-4)
    assert not repeated
