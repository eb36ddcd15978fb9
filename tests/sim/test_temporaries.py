"""Large arrays in fibres: of operators numpy reuses temporaries, and walks the stack to find out whether it may."""

import os
import subprocess
import sys

import pytest

CALLS = """
import torch
from overlap.ops import a2a_gemm, gemm_ar, reserve
from overlap.sim import World

generator = torch.Generator().manual_seed(0)
xs = [torch.randn(40, 16, generator=generator).half() for _ in range(3)]
ws = [torch.randn(16, 24, generator=generator).half() for _ in range(3)]

def sums(group):
    rank = group.overlap_runtime.rank
    options = dict(group=group, backend="copy_engine", plan="all_reduce_two_shot", split=(2, 2, 2, 1, 1))
    made = [gemm_ar(xs[rank], ws[rank], out_dtype=dtype, **options).clone() for dtype in (torch.float16, torch.float32)]
    group.overlap_runtime.synchronize()
    return made

def exchanges(group):
    reserve(group, operator="a2a_gemm", max_tokens=60, hidden=48)
    x, w = torch.randn(60, 16).bfloat16(), torch.randn(48, 24).bfloat16()
    a2a_gemm(x, w, group=group), a2a_gemm(x[:7], w, group=group)
    reserve(group, operator="gemm_a2a", max_tokens=60, hidden=48)
    group.overlap_runtime.synchronize()

World(3).run(sums), World(3).run(exchanges)
print("done")
"""


@pytest.mark.one_triton
def test_fibres_live_through_large_temporaries(tmp_path):
    """In a process of its own, which numpy's walk over the stack of another fibre ended."""
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OVERLAP_SUM_SMS": "1", "OVERLAP_CACHE_DIR": str(tmp_path)}
    environment.pop("OVERLAP_GIVEN_BYTES", None)
    script = tmp_path / "calls.py"
    script.write_text(CALLS)
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr[-2000:]
