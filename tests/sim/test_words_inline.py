"""Results that kernels send in low-latency words and add up in the same launch: against the original kernel.

CI runs a part in which every pair of values meets; ``make sweep`` runs all of it, with 20 seeds.
"""

from __future__ import annotations

import itertools
import os

import pytest
import torch
from test_proof_matrix import pairwise, thinned
from test_pushing import compiler

from overlap.annotate.source import SourceUnit
from overlap.codegen.module_io import load_module
from overlap.errors import RuntimeContractError, UnsupportedError
from overlap.language.packets import CLEAN_EVERY, MOST_PROGRAMS
from overlap.pipeline import Request, compile_source
from overlap.runtime import workspace
from overlap.runtime.workspace import reserve
from overlap.sim import World, check_module

SWEEP = os.environ.get("OVERLAP_SWEEP") == "1"
POINTERS, DESCRIPTORS = ("grouped_gemm", "gemm_2d"), ("persistent_gemm", "host_descriptors")
WAYS = (("reduce_scatter_1d", "c[M]"), ("all_reduce_one_shot", "c[]"))
WAYS += (("reduce_scatter_1d", "c[N]"), ("all_to_all_1d", "c[M:N]"))
FACTORS = (POINTERS, WAYS, (1, 2, 3, 4, 5), ((70, 72), (3, 67), (64, 66)), ("fp16", "bf16", "fp32"))
PAIRS = pairwise(FACTORS)
CASES = [(*case, (seed,)) for seed, case in enumerate(PAIRS)]
if SWEEP:
    CASES = [(*case, tuple(range(20))) for case in itertools.product(*FACTORS)]
BY_TMA = pairwise((DESCRIPTORS, WAYS, (1, 3, 4), ("fp16", "fp32")))


@pytest.fixture(scope="module")
def generated(tmp_path_factory, repo):
    make = compiler(tmp_path_factory, repo)
    return lambda *given, **options: make(*given, **{"backend": "words_inline", **options})


@pytest.mark.parametrize("kernel,way,world,shape,dtype,seeds", thinned(CASES))
def test_agrees_with_the_original(generated, kernel, way, world, shape, dtype, seeds):
    """Rows that whole lines do not divide, ranks without a piece, and more calls than there are sides."""
    sizes = {"M": shape[0], "N": shape[1], "K": 16}
    report = check_module(generated(kernel, *way), world=world, shape=sizes, dtype=dtype, seeds=list(seeds), sms=8)
    assert report.ok, str(report)


@pytest.mark.parametrize("kernel,way,world,dtype", thinned(BY_TMA))
def test_tiles_stored_through_descriptors(generated, kernel, way, world, dtype):
    """Programs walk over tiles: there are as many as are resident, and they send the tiles of all."""
    sizes = {"M": 130, "N": 64, "K": 16}
    report = check_module(generated(kernel, *way), world=world, shape=sizes, dtype=dtype, seeds=[world], sms=2)
    assert report.ok, str(report)


def test_more_programs_than_are_resident(generated):
    with pytest.raises(UnsupportedError, match="`matmul` launches 6, and 5 are resident at a time") as caught:
        check_module(generated(), world=2, shape={"M": 130, "N": 128, "K": 16}, sms=5)
    assert 'backend="copy_engine"' in caught.value.help and caught.value.where is not None


def test_marks_come_round(generated, monkeypatch):
    """Calls around those that clear lines which were not used for long."""
    made = workspace.Memory.__init__

    def late(self, runtime, need, dtypes):
        made(self, runtime, need, dtypes)
        self.words[:MOST_PROGRAMS] = CLEAN_EVERY - 3

    monkeypatch.setattr(workspace.Memory, "__init__", late)
    report = check_module(generated(), world=3, shape={"M": 70, "N": 64, "K": 16}, seeds=[0, 1], launches=6, sms=8)
    assert report.ok, str(report)


@pytest.mark.parametrize(
    "plan,on,said",
    [
        ("all_reduce_two_shot", "c[]", "sends what others have sent"),
        ("reduce_scatter_ring", "c[M]", "sends what others have sent"),
        ("all_gather_1d", "a[M]", "words_inline stores what a kernel makes"),
    ],
)
def test_what_is_no_tile_of_the_kernel_is_refused(generated, plan, on, said):
    with pytest.raises(UnsupportedError, match=said) as caught:
        generated("grouped_gemm", plan, on)
    assert "copy_engine" in caught.value.help


def test_a_plan_names_words_for_all_of_its_operations_or_for_none(generated, tmp_path, repo):
    plans = repo / "templates" / "plans"
    every, some = tmp_path / "every.yaml", tmp_path / "some.yaml"
    every.write_text((plans / "reduce_scatter_1d.yaml").read_text() + "    backend: words_inline\n")
    some.write_text((plans / "mixed" / "reduce_scatter_1d.yaml").read_text().replace("ldst_inline", "words_inline"))
    path = generated("grouped_gemm", str(every), backend="copy_engine")
    assert check_module(path, world=2, shape={"M": 70, "N": 64, "K": 16}, sms=8).ok
    with pytest.raises(UnsupportedError, match="operations ask for words_inline and for copy_engine"):
        generated("grouped_gemm", str(some), backend="copy_engine")


def test_the_second_region_of_a_kernel_stores_its_tile(tmp_path, repo):
    """Its coordinates there are those of the tile that is sent."""
    path, source = tmp_path / "out.py", repo / "tests" / "kernels" / "persistent_epilogue_tile.py"
    request = Request(SourceUnit.from_file(source), plan="all_reduce_one_shot", on="c[]", backend="words_inline")
    path.write_text(compile_source(request).module.text)
    report = check_module(str(path), world=2, shape={"M": 130, "N": 64, "K": 32}, seeds=[1], sms=2)
    assert report.ok, str(report)


@pytest.mark.one_triton
def test_shapes_alternate_on_one_epoch(generated):
    """Another number of programs, ranks without tiles or pieces, memory that grows: calls go on from side to side."""
    module, shapes = load_module(generated("grouped_gemm")), ((70, 64), (3, 67), (0, 64), (130, 64), (3, 67))
    generator = torch.Generator().manual_seed(0)
    given = {
        (call, rank): [torch.randn(size, generator=generator) for size in ((m, 16), (16, n))]
        for call, (m, n) in enumerate(shapes)
        for rank in range(3)
    }

    def body(group):
        return [module.matmul(*given[call, group.overlap_runtime.rank], group=group) for call in range(len(shapes))]

    for seed in range(3):
        found = World(3, seed=seed, sms=8).run(body)
        for call in range(len(shapes)):
            wanted = sum(given[call, rank][0].double() @ given[call, rank][1].double() for rank in range(3))
            got = torch.cat([results[call] for results in found])
            torch.testing.assert_close(got.double(), wanted, atol=1e-4, rtol=1e-4, msg=f"call {call}")


@pytest.mark.one_triton
def test_sums_are_made_in_rank_order_and_rounded_once(generated):
    """Numbers whose sum depends on the order and on where it is rounded; every rank ends with the same bits."""
    module = load_module(generated("grouped_gemm", "all_reduce_one_shot", "c[]"))
    values = (2.0**12, 1.5, 1.25, -(2.0**12))
    parts, one = [torch.full((4, 4), value).half() for value in values], torch.eye(4, dtype=torch.float16)
    assert sum(torch.tensor(values).half()) != 2.75, "not so where each sum is rounded"

    def body(group):
        return module.matmul(parts[group.overlap_runtime.rank], one, group=group)

    for seed in range(2):
        for got in World(4, seed=seed, sms=8).run(body):
            assert torch.equal(got, torch.full((4, 4), 2.75).half())


@pytest.mark.one_triton
def test_reserved_memory_serves_smaller_shapes_and_no_larger_one(generated):
    module = load_module(generated("grouped_gemm"))
    given = {n: [torch.randn(size) for size in ((70, 16), (16, n))] for n in (64, 67, 128)}

    def body(group):
        reserve(module.OL_OPERATOR, group, {"M": 70, "N": 67}, torch.float32)
        results = [module.matmul(*given[n], group=group) for n in (64, 67)]
        with pytest.raises(RuntimeContractError, match="reserved are"):
            module.matmul(*given[128], group=group)
        return results

    for results in World(2, sms=8).run(body):
        assert [tuple(y.shape) for y in results] == [(35, 64), (35, 67)]


@pytest.mark.one_triton
def test_a_result_in_the_memory_of_an_operand_is_refused(generated):
    """Programs write it while others still read: what copies allow, whose sums follow the kernel."""
    module = load_module(generated("grouped_gemm"))
    a, b = torch.randn(64, 16), torch.randn(16, 64)

    def body(group):
        whole = torch.empty(64, 64)
        x = whole.view(-1)[: 64 * 16].view(64, 16).copy_(a)
        with pytest.raises(RuntimeContractError, match="out lies in the memory of `a_ptr`"):
            module.matmul(x, b, group=group, out=whole[:32])
        return module.matmul(x, b, group=group, out=whole[32:])

    for y in World(2, sms=8).run(body):
        assert tuple(y.shape) == (32, 64)
