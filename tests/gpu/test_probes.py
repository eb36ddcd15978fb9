"""What `overlap calibrate` times through NVSHMEM, on a rank that is its own neighbour: it copies what it says, and is timed."""

from __future__ import annotations

import os
import subprocess
import sys

PROBED = """
import torch
import torch.distributed as dist

store = dist.FileStore({store!r}, 1)
dist.init_process_group("cpu:gloo,cuda:nccl", store=store, rank=0, world_size=1, device_id=torch.device("cuda", 0))
from overlap.autotune.calibrate.probes import BY_PROGRAMS, Probes
from overlap.runtime.cuda.runtime import runtime_for_group

probes = Probes(runtime_for_group(None))
ways = [way for way in probes.ways() if way.endswith("_nvshmem")]
assert ways == ["pull_nvshmem", "push_nvshmem"], probes.ways()
for way in ways:
    for count, sample in probes.programs(way, (1, 4, 16, 132)):
        print(way, count, f"{{sample.gb_per_s:.1f}} GB/s", flush=True)
    for count in (1, 5):
        held = torch.randint(0, 256, (BY_PROGRAMS,), dtype=torch.uint8, device="cuda")
        probes.memory.fill_(7)
        (probes.memory[BY_PROGRAMS:] if way.startswith("pull") else probes.memory)[:BY_PROGRAMS] = held
        copied = probes.carrying(way, count)
        copied()
        torch.cuda.synchronize()
        assert torch.equal(probes.memory[:BY_PROGRAMS], held) and torch.equal(
            probes.memory[BY_PROGRAMS : 2 * BY_PROGRAMS], held
        ), (way, count)
        assert (probes.memory[2 * BY_PROGRAMS :] == 7).all()
print("copied")
"""


def test_programs_copy_through_nvshmem(tmp_path):
    env = {
        **os.environ,
        "OVERLAP_PROVIDER": "nvshmem",
        "NVSHMEM_SYMMETRIC_SIZE": "1G",
        "OVERLAP_CACHE_DIR": str(tmp_path),
    }
    code = PROBED.format(store=str(tmp_path / "store"))
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=env, timeout=100, check=False
    )
    print(done.stdout)
    assert done.stdout.splitlines()[-1:] == ["copied"], done.stdout + done.stderr[-3000:]
