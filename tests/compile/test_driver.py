"""What our launches and copies tell the CUDA driver, on a stub of it that keeps what it is told (stub/libcuda.c).

Triton's launcher is another one in every version. Launches below it must give the driver, byte for byte, what Triton gives.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import triton

from tests.support.compilations import records

HERE = Path(__file__).parent / "stub"
HEADERS = Path(triton.__file__).parent / "backends" / "nvidia" / "include"


@pytest.fixture(scope="module")
def on_stub(tmp_path_factory, repo):
    """Runs a script of stub/ in a process that finds the stub for its driver, and gives what it prints."""
    folder = tmp_path_factory.mktemp("driver")
    compiler = shutil.which("gcc") or shutil.which("cc")
    assert compiler, "Triton needs a C compiler to launch, and so does its stub"
    flags = ("-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-I", str(HEADERS), "-o", str(folder / "libcuda.so.1"))
    subprocess.run([compiler, *flags, str(HERE / "libcuda.c")], check=True)

    def run(script, *arguments):
        found = {
            "LD_LIBRARY_PATH": str(folder),
            "TRITON_LIBCUDA_PATH": str(folder),
            "TRITON_CACHE_DIR": str(folder),
            "OVERLAP_CACHE_DIR": str(folder),
        }
        env = {**os.environ, **found, "PYTHONPATH": str(repo)}
        done = subprocess.run(
            [sys.executable, str(HERE / script), *arguments], env=env, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


def test_a_bound_launch_gives_the_driver_what_triton_gives_it(on_stub):
    """Addresses, strides, integers of both widths, a float, a descriptor, a pointer that is None; as a node of a graph too.

    Hooks get their launch.
    """
    assert on_stub("launches.py") == f"Triton {triton.__version__}: 4 launches alike\n"


@pytest.mark.one_triton
def test_the_driver_understands_copies_waits_and_events(on_stub):
    assert on_stub("calls.py") == "the driver understood every call\n"


@pytest.mark.one_triton
def test_a_graph_of_a_call_does_what_its_steps_do(on_stub):
    """With the parameters of every kernel byte for byte, in five calls of the driver: waiting for the last call, two kernels'
    addresses, the graph, the event at its end. Two chunks to each of two peers are held, copied and flagged; three kernels."""
    assert on_stub("operators.py", "--world", "3", "gemm_rs", "ag_gemm") == (
        "gemm_rs, 3 ranks: calls 21, lanes in graphs 10, one graph 5, nodes 15\n"
        "ag_gemm, 3 ranks: calls 14, lanes in graphs 11, one graph 5, nodes 8\n"
        "by default repetition 16 of a call is a graph\n"
    )


@pytest.mark.one_triton
def test_a_rehearsal_compiles_what_ranks_look_for(on_stub, tmp_path):
    """The same keys in Triton's cache; no GPU is here to time polls."""
    asked = {}
    for name, how in {"rehearsed": (), "by the runtime": ("--by-stub",)}.items():
        on_stub("rehearsed.py", str(tmp_path / name), *how)
        asked[name] = {(record["name"], record["key"]) for record in records([tmp_path / name])}
    assert len(asked["by the runtime"]) > 9
    assert asked["by the runtime"] <= asked["rehearsed"]
    more = asked["rehearsed"] - asked["by the runtime"]
    assert sorted(name for name, _ in more) == ["wait_kernel", "wait_packets_kernel"]


@pytest.mark.one_triton
def test_a_graph_of_copies_out_of_the_callers_tensor_is_given_its_address(on_stub):
    """Two copies more are given an address than above; lanes of such copies go by calls. Where a copy's node does not take an
    address, the call goes by its steps."""
    assert on_stub("operators.py", "--world", "3", "--given", "ag_gemm") == (
        "ag_gemm, 3 ranks: calls 14, lanes in graphs 14, one graph 7, nodes 8\n"
        "by default repetition 16 of a call is a graph\n"
    )


def test_a_graph_of_tiles_that_store_in_the_result_is_given_its_address(on_stub):
    """In a descriptor of the product's kernel, beside those of its operands, and in the sum's that brings the peers' pieces."""
    assert on_stub("operators.py", "--world", "2", "--in-place", "gemm_a2a") == (
        "gemm_a2a, 2 ranks: calls 12, lanes in graphs 12, one graph 5, nodes 6\n"
        "by default repetition 16 of a call is a graph\n"
    )


@pytest.mark.one_triton
def test_calls_that_are_alike_are_made_again_in_c_and_no_others(on_stub):
    """Layouts, alignment, settings, gradients, hooks, captures, streams, threads, faults, memory that grows, references."""
    assert on_stub("again.py") == "calls that are alike are made again in C, and no others\n"


def test_a_graph_of_tiles_that_read_the_callers_tensor_is_given_its_address(on_stub):
    """In a descriptor of the product's kernel. A graph is an entry, a copy, a flag, the product, a credit: nothing is staged."""
    assert on_stub("operators.py", "--world", "2", "--given", "--in-place", "ag_gemm") == (
        "ag_gemm, 2 ranks: calls 11, lanes in graphs 11, one graph 5, nodes 5\n"
        "by default repetition 16 of a call is a graph\n"
    )
