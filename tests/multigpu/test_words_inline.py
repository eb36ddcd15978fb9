"""Results sent in low-latency words and added up by the launch that makes them, on real ranks, eager and in graphs."""

import itertools
import random
import time

import pytest
import torch

from overlap.errors import DeadlineError, OverlapError, UnsupportedError
from overlap.ops import gemm_ar, gemm_rs, last_plan
from overlap.runtime.workspace import check, release
from tests.support.ranks import Product, delay, template
from tests.support.rehearsal import of_tests, products

from .conftest import WORLD
from .test_graphs import Captured
from .test_results_op import Sum

pytestmark = [pytest.mark.ranks(2), pytest.mark.usefixtures("one_folder")]
BACKEND = "words_inline"
LAST = WORLD - 1
DEADLINE_S = 3
WAYS = {"reduce_scatter_1d": "c[M]", "all_reduce_one_shot": "c[]", "all_to_all_1d": "c[M:N]"}
KERNELS = {
    "grouped_gemm": template("grouped_gemm"),
    "persistent_gemm": template("persistent_gemm"),
    "host_descriptors": "tests/kernels/host_descriptors.py",
}
SHAPES = [(515, 136, 96), (130, 264, 200), (128, 2048, 512), (3, 64, 64), (1, 8, 8), (16, 1024, 96)]
ODD = [(65, 67, 33), (2, 5, 7)]


def shapes_of(name, plan):
    """What `test_every_form` calls, and with which dtypes."""
    shapes = [*SHAPES, *ODD] if name == "grouped_gemm" else SHAPES
    if name == "host_descriptors" and plan == "all_to_all_1d":
        # A rank without rows has no descriptor of them to make on the host.
        shapes = [shape for shape in shapes if shape[0] >= WORLD]
    return shapes, (torch.bfloat16, torch.float32) if name == "grouped_gemm" else (torch.float16,)


def ahead():
    """What is compiled ahead of the tests (`tests.support.ahead`)."""
    for name, plan in itertools.product(KERNELS, WAYS):
        shapes, dtypes = shapes_of(name, plan)
        for dtype in dtypes:
            calls = [(shape, dtype) for shape in (*shapes, *shapes[::-1])]
            yield products(f"test_every_form[{name}-{plan}]", KERNELS[name], (plan, WAYS[plan], BACKEND), *calls)
    gemm, persistent = KERNELS["grouped_gemm"], KERNELS["persistent_gemm"]
    calls = [(shape, torch.bfloat16) for shape in (*SHAPES, *ODD)]
    yield products("test_columns", gemm, ("reduce_scatter_1d", "c[N]", BACKEND), *calls)
    for plan in ("reduce_scatter_1d", "all_reduce_one_shot"):
        calls = [((m, 1024, 96), torch.float16) for m in (16, 130)]
        yield products("test_a_graph_replayed_with_new_data", persistent, (plan, WAYS[plan], BACKEND), *calls)
    for test, dtype in (
        ("test_many_calls_one_behind_the_other", torch.bfloat16),
        ("test_a_rank_that_does_not_come", torch.float16),
    ):
        yield products(test, gemm, ("all_reduce_one_shot", "c[]", BACKEND), ((16, 256, 64), dtype))
    yield from of_tests(test_operators)


@pytest.mark.parametrize("plan", WAYS)
@pytest.mark.parametrize("name", KERNELS)
def test_every_form(generated, group, name, plan):
    """Of one operator shapes take turns on one epoch, in calls that ranks come to at different times."""
    module = generated(KERNELS[name], plan, WAYS[plan], BACKEND)
    shapes, dtypes = shapes_of(name, plan)
    for dtype in dtypes:
        each = [Product(group, *shape, dtype, on=WAYS[plan]) for shape in shapes]
        for seed, product in enumerate([*each, *each[::-1], *each]):
            delay(seed, product.rank)
            product.check(module, seed)
    check(group)


def test_columns(generated, group):
    module = generated(template("grouped_gemm"), "reduce_scatter_1d", "c[N]", BACKEND)
    for seed, (m, n, k) in enumerate([*SHAPES, *ODD]):
        Product(group, m, n, k, torch.bfloat16, on="c[N]").check(module, seed)
    check(group)


def test_more_programs_than_are_resident(generated, group):
    module = generated(template("grouped_gemm"), "all_reduce_one_shot", "c[]", BACKEND)
    with pytest.raises(UnsupportedError, match="are resident at a time"):
        Product(group, 8192, 8192, 64, torch.bfloat16, on="c[]").call(module, 0)
    Product(group, 64, 64, 64, torch.bfloat16, on="c[]").check(module, 1)


@pytest.mark.parametrize("plan", ["reduce_scatter_1d", "all_reduce_one_shot"])
def test_a_graph_replayed_with_new_data(generated, group, plan):
    """Two shapes in graphs of their own, replayed in any order between eager calls."""
    module = generated(template("persistent_gemm"), plan, WAYS[plan], BACKEND)
    products = [Product(group, m, 1024, 96, torch.float16, on=WAYS[plan]) for m in (16, 130)]
    for product in products:
        product.check(module, 0)
    # The first one in memory that the second has outgrown.
    captured = [Captured(module, product) for product in products]
    order, missed = random.Random(0), []
    for seed in range(60):
        chosen = order.choice(captured)
        delay(seed, chosen.product.rank)
        missed.append(chosen.replay(seed))
        if seed % 7 == 0:
            missed.append(chosen.product.wrong(*chosen.product.call(module, seed + 1000)))
    assert not torch.stack(missed).any()
    check(group)


def test_many_calls_one_behind_the_other(generated, group):
    """Nothing but words orders the ranks: one that is ahead does not overwrite what another still looks at."""
    module = generated(template("grouped_gemm"), "all_reduce_one_shot", "c[]", BACKEND)
    product = Product(group, 16, 256, 64, torch.bfloat16, on="c[]")
    inputs = [product.inputs(seed) for seed in range(4)]
    wanted = [product.wanted(seed) for seed in range(4)]
    missed = []
    for call in range(400):
        if call % 50 == product.rank:
            torch.cuda._sleep(300_000)
        got = module.matmul(*inputs[call % 4], group=group, sizes=product.sizes)
        missed.append(product.wrong(got, wanted[call % 4]))
    assert not torch.stack(missed).any()
    check(group)


@pytest.mark.parametrize("rows", [1, 16, 128])
def test_operators(group, rows):
    """Fused by words: products of few rows, with a bias, in another dtype than their operands, scattered along columns."""
    options = ({}, {"out_dtype": torch.float32}, {"transport_dtype": torch.float32})
    for seed, (how, dim) in enumerate(itertools.product(options, (0, 1))):
        sums = Sum(group, (rows,), 1024, 512, torch.bfloat16, seed, bias=True)
        delay(seed, sums.rank)
        assert not sums.check(gemm_rs, dim=dim, backend=BACKEND, **how), (rows, how, dim)
        assert not sums.check(gemm_ar, backend=BACKEND, **how), (rows, how)
        assert last_plan("gemm_ar").plan == "all_reduce_one_shot"
    check(group)


def test_a_rank_that_does_not_come(generated, group, monkeypatch):
    """Whoever waits names it, and what it did not send."""
    monkeypatch.setenv("OVERLAP_DEADLINE_S", str(DEADLINE_S))
    module = generated(template("grouped_gemm"), "all_reduce_one_shot", "c[]", BACKEND)
    product = Product(group, 16, 256, 64, torch.float16, on="c[]")
    product.check(module, 0)
    check(group)
    if product.rank == LAST:
        time.sleep(3 * DEADLINE_S)
    else:
        start = time.monotonic()
        product.call(module, 1)
        said = rf"waited {DEADLINE_S} s for (words of c\[.*\] from rank {LAST}|rank {LAST} to begin)"
        with pytest.raises(DeadlineError, match=said):
            check(group)
        assert time.monotonic() - start < 2.5 * DEADLINE_S
        with pytest.raises(DeadlineError, match=f"rank {LAST}"):
            product.call(module, 2)
    monkeypatch.setenv("OVERLAP_DEADLINE_S", "60")
    try:
        if product.rank == LAST:
            product.call(module, 1)
            check(group)
    except OverlapError as error:
        assert isinstance(error, DeadlineError)
    release(group)
    product.check(module, 3)
    check(group)
