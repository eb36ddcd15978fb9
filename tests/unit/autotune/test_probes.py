"""What is tried on which device, and the command where nothing can be measured."""

from __future__ import annotations

import subprocess
import sys

import pytest

from overlap.autotune.calibrate.probes import program_counts


@pytest.mark.parametrize(
    ("units", "counts"),
    [(132, (4, 8, 16, 32, 64, 132)), (108, (4, 8, 16, 32, 64, 108)), (8, (4, 8)), (4, (4,)), (3, (3,)), (9, (4, 8, 9))],
)
def test_programs_go_up_to_every_multiprocessor(units, counts):
    assert program_counts(units) == counts


def test_without_a_gpu_the_reason_is_said():
    done = subprocess.run(
        [sys.executable, "-m", "overlap", "calibrate"], capture_output=True, text=True, env={"CUDA_VISIBLE_DEVICES": ""}
    )
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "no GPU here" in done.stderr and "predict" in done.stderr
