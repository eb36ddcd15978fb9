"""Calls captured in CUDA graphs: replays with new data, several shapes on one workspace, growth after a capture."""

import itertools
import random

import pytest
import torch

from overlap.errors import RuntimeContractError
from overlap.runtime.workspace import check
from tests.support.ranks import WAYS, Product, delay, takes, template
from tests.support.rehearsal import products

FORMS = [(name, way) for name in ("grouped_gemm", "persistent_gemm") for way in WAYS if takes(name, way)]
SEVERAL = ["gather, pull", "gather, push", "scatter", "reduce, two shots", "exchange after"]
ROWS = (1, 8, 64, 512)
WARMED = ["first", "as memory grows", "and outgrown"]


def ahead():
    """What is compiled ahead of the tests (`tests.support.ahead`)."""
    half = torch.float16
    for name, way in FORMS:
        test = f"test_a_graph_replayed_a_hundred_times_with_new_data[{name}-{way}]"
        yield products(test, template(name), WAYS[way], ((1000, 136, 96), half))
    for way, warmed in itertools.product(SEVERAL, WARMED):
        test = f"test_graphs_of_several_shapes_replayed_in_random_order[{way}-{warmed}]"
        yield products(test, template("grouped_gemm"), WAYS[way], *(((m, 136, 96), half) for m in ROWS))
    for test, plan in (
        ("test_two_calls_in_one_graph_on_two_streams", "all_gather_1d"),
        ("test_a_capture_between_two_calls_leaves_them_in_order", "all_gather_1d_push"),
    ):
        yield products(test, template("grouped_gemm"), (plan, "a[M]"), ((515, 136, 96), half))


class Captured:
    """One call in a graph, with inputs that can be refilled."""

    def __init__(self, module, product, pool=None):
        self.product = product
        self.inputs = [t.clone() for t in product.inputs(0)]
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, pool=pool):
            self.result = module.matmul(*self.inputs, group=product.group, sizes=product.sizes)

    def replay(self, seed):
        """Whether a replay on the data of ``seed`` was wrong."""
        for held, new in zip(self.inputs, self.product.inputs(seed), strict=True):
            held.copy_(new)
        self.result.fill_(float("nan"))
        self.graph.replay()
        return self.product.wrong(self.result, self.product.wanted(seed))


@pytest.mark.parametrize(("name", "way"), FORMS)
def test_a_graph_replayed_a_hundred_times_with_new_data(generated, group, name, way):
    on, module = WAYS[way][1], generated(template(name), *WAYS[way])
    product = Product(group, 1000, 136, 96, torch.float16, on=on)
    product.check(module, 0)
    captured = Captured(module, product)
    wrong = []
    for seed in range(100):
        delay(seed, product.rank)
        wrong.append(captured.replay(seed))
        if seed % 10 == 0:
            wrong.append(product.wrong(*product.call(module, seed + 1000)))
    assert not torch.stack(wrong).any()
    check(group)


@pytest.mark.parametrize("warmed", WARMED)
@pytest.mark.parametrize("way", SEVERAL)
def test_graphs_of_several_shapes_replayed_in_random_order(generated, group, way, warmed):
    """M = 1, 8, 64, 512 on one workspace. Captured as memory grows, or when it has, early graphs keep the memory they know."""
    on, module = WAYS[way][1], generated(template("grouped_gemm"), *WAYS[way])
    products = [Product(group, m, 136, 96, torch.float16, on=on) for m in ROWS]
    captured = []
    if warmed != "as memory grows":
        for product in products:
            product.check(module, 0)
    for product in products:
        if warmed != "and outgrown":
            product.check(module, 1)
        captured.append(Captured(module, product))
    order = random.Random(7)
    wrong = []
    for seed in range(200):
        delay(seed, products[0].rank)
        wrong.append(order.choice(captured).replay(seed))
    assert not torch.stack(wrong).any()
    check(group)


def test_two_calls_in_one_graph_on_two_streams(generated, group):
    module = generated(template("grouped_gemm"), "all_gather_1d", "a[M]")
    product = Product(group, 515, 136, 96, torch.float16)
    product.check(module, 0)
    inputs = [product.inputs(1), product.inputs(2)]
    graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.graph(graph):
        main = torch.cuda.current_stream()
        side.wait_stream(main)
        one = module.matmul(*inputs[0], group=group, sizes=product.sizes)
        with torch.cuda.stream(side):
            two = module.matmul(*inputs[1], group=group, sizes=product.sizes)
        main.wait_stream(side)
    for _ in range(20):
        one.fill_(float("nan"))
        two.fill_(float("nan"))
        graph.replay()
        for got, seed in ((one, 1), (two, 2)):
            assert not product.wrong(got, product.wanted(seed))


def test_a_capture_between_two_calls_leaves_them_in_order(generated, group):
    """A slow call on one stream, a capture on another, a call on a third: nothing but the runtime orders the two calls."""
    module = generated(template("grouped_gemm"), "all_gather_1d_push", "a[M]")
    product = Product(group, 515, 136, 96, torch.float16)
    product.check(module, 0)
    first, second, third = torch.cuda.Stream(), torch.cuda.Stream(), torch.cuda.Stream()
    inputs = product.inputs(0)
    wrong = []
    for seed in range(1, 21, 2):
        torch.cuda.synchronize()
        with torch.cuda.stream(first):
            torch.cuda._sleep(20_000_000)
            wrong.append(product.wrong(*product.call(module, seed)))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(second):
            # `torch.cuda.graph` would wait for the device first.
            graph.capture_begin()
            module.matmul(*inputs, group=group, sizes=product.sizes)
            graph.capture_end()
        with torch.cuda.stream(third):
            wrong.append(product.wrong(*product.call(module, seed + 1)))
    torch.cuda.synchronize()
    assert not torch.stack(wrong).any()


def test_a_first_call_in_a_capture_is_refused_on_every_rank(generated, group):
    module = generated(template("grouped_gemm"), "all_gather_1d", "a[M]")
    product = Product(group, 515, 136, 96, torch.float16)
    inputs = product.inputs(0)
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(RuntimeContractError, match="while a CUDA graph is captured"), torch.cuda.graph(graph):
        module.matmul(*inputs, group=group, sizes=product.sizes)
    product.check(module, 1)
