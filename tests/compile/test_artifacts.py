"""Compiling without a GPU: specialisation, facts, targets, what is written."""

import pytest
import torch

from overlap.build import Buffer, build_report, compile_kernel, facts, parse_target
from overlap.build.artifact import pipelined_buffers
from overlap.errors import CodegenError, UsageError

from .support import ARGUMENTS, _module, compiled, meta, state


@pytest.mark.parametrize(
    ("name", "backend", "arch", "warp"),
    [
        ("sm_90", "cuda", 90, 32),
        ("SM90", "cuda", 90, 32),
        ("sm_90a", "cuda", 90, 32),
        ("sm_100", "cuda", 100, 32),
        ("gfx942", "hip", "gfx942", 64),
        ("gfx1100", "hip", "gfx1100", 32),
    ],
)
def test_targets(name, backend, arch, warp):
    target = parse_target(name)
    assert (target.backend, target.arch, target.warp) == (backend, arch, warp)


@pytest.mark.parametrize("name", ["", "sm_", "h100", "gfx9", "90"])
def test_unknown_targets_are_refused(name):
    with pytest.raises(UsageError, match="no target"):
        parse_target(name)


def test_arguments_are_specialised_as_a_launch_would():
    """Sixteen divides 512 but not 500; one is folded into the code; a float keeps its type."""
    divisible = compiled("waits", "correct").stages["ttir"]
    ragged = compiled("waits", "correct", options=(("N", 500),)).stages["ttir"]
    one = compiled("waits", "correct", options=(("N", 1),)).stages["ttir"]

    def parameter(text: str, name: str) -> list[str]:
        header = next(line for line in text.splitlines() if "tt.func public" in line)
        return [part for part in header.split("%") if part.startswith(f"{name}:")]

    assert "tt.divisibility = 16" in parameter(divisible, "N")[0]
    assert "tt.divisibility" not in parameter(ragged, "N")[0]
    assert parameter(one, "N") == []
    assert "tt.divisibility = 16" in parameter(ragged, "a_ptr")[0]


def test_stages_warps_and_engines_are_read_off():
    three = facts(compiled("persistent", "correct"))
    two = facts(compiled("persistent", "correct", options=(("num_stages", 2),)))
    assert three.buffers == (Buffer(3, (128, 64), "f16"), Buffer(3, (128, 64), "f16"))
    assert (three.stages, two.stages) == (3, 2)
    assert two.shared_bytes < three.shared_bytes
    assert three.num_warps == 8 and three.num_ctas == 1
    assert three.wgmma > 0 and three.matrix_instructions >= three.wgmma
    assert three.tma_loads >= 4 and three.tma_stores >= 1 and three.async_copies == 0
    assert three.registers and three.spill_bytes == 0


def test_pointer_kernels_copy_asynchronously_without_tma():
    found = facts(compiled("waits", "correct"))
    assert found.async_copies > 0 and found.tma_loads == 0 and found.tma_stores == 0
    ampere = facts(compiled("waits", "correct", "sm_80"))
    assert ampere.wgmma == 0 and ampere.matrix_instructions > 0


def test_amd_artifacts_have_registers_and_matrix_instructions():
    made = compiled("waits", "correct", "gfx942")
    found = facts(made)
    assert found.registers and found.spill_bytes == 0 and found.matrix_instructions > 0
    assert "amdgcn" in made.stages and "ptx" not in made.stages
    assert "wgmma" not in build_report(found, [])


def test_only_operand_buffers_count_as_stages():
    text = """
    %0 = ttg.local_alloc : () -> !ttg.memdesc<4x128x64xbf16, #shared, #smem, mutable> loc(#l)
    %1 = ttg.local_alloc {async.id = 1 : i32} : () -> !ttg.memdesc<2x32x64xf8E4M3FN, #shared, #smem, mutable> loc(#l)
    %2 = ttg.local_alloc : () -> !ttg.memdesc<4x1xi64, #shared1, #smem, mutable> loc(#l)
    %3 = ttg.local_alloc : () -> !ttg.memdesc<128x256xbf16, #shared, #smem, mutable> loc(#l)
    %4 = ttg.local_alloc %x : (tensor<128x64xbf16, #b>) -> !ttg.memdesc<128x64xbf16, #shared, #smem> loc(#l)
    """
    assert pipelined_buffers(text) == (Buffer(4, (128, 64), "bf16"), Buffer(2, (32, 64), "f8E4M3FN"))


def test_every_stage_is_written(tmp_path):
    paths = compiled("raises", "correct").save(tmp_path / "deep" / "er")
    assert {path.suffix for path in paths} == {".ttir", ".ttgir", ".llir", ".ptx", ".cubin"}
    assert all(path.stat().st_size > 0 for path in paths)


def test_a_missing_argument_is_refused():
    arguments, options = ARGUMENTS["waits"]
    with pytest.raises(UsageError, match="ol_state"):
        compile_kernel(_module("waits").correct, arguments, parse_target("sm_90"), options)


def test_an_unknown_launch_option_is_refused():
    arguments, _ = ARGUMENTS["waits"]
    with pytest.raises(UsageError, match="no launch option 'num_wraps'"):
        compile_kernel(
            _module("waits").correct, {**arguments, "ol_state": state()}, parse_target("sm_90"), {"num_wraps": 4}
        )


def test_what_triton_refuses_is_a_codegen_error(capfd):
    arguments, options = ARGUMENTS["waits"]
    wrong = {**arguments, "b_ptr": meta(512, 512, dtype=torch.int64), "ol_state": state()}
    with pytest.raises(CodegenError, match="Triton does not compile `correct` for sm_90"):
        compile_kernel(_module("waits").correct, wrong, parse_target("sm_90"), options)
