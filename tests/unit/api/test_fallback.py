"""When a call goes through a plain collective, and why."""

from types import SimpleNamespace

import pytest
import torch

from overlap.api.auto import Problem
from overlap.api.fallback import MOVING, STORING, Choice, check_backend, choose, compare
from overlap.backends.base import Realization
from overlap.errors import UsageError
from overlap.ops import exchange_gemm, gather_k_gemm, gemm_exchange, reduce_gemm
from overlap.ops.arguments import choose_way

HELD = torch.empty(512, 60).half()
"""A piece of four, of 240 columns or 2048 rows."""


@pytest.fixture
def reachable(monkeypatch):
    """A group whose ranks reach each other."""
    monkeypatch.setattr("overlap.api.fallback.impossible", lambda group, tensor, far=False: "")


def test_ranks_that_reach_each_other():
    assert compare([(("m", f"gpu {rank}"), "host", ["gpu 9"]) for rank in range(4)]) == ""


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ([(("m", "g0"), "one", []), (("n", "g0"), "two", [])], "spans 2 hosts (one, two)"),
        ([(("m", "g0"), "one", []), (("n", "g1"), "one", [])], "spans 2 hosts"),
        (
            [(("m", "g0"), "one", []), (("m", "g1"), "one", []), (("m", "g0"), "one", [])],
            "ranks 0 and 2 share one device",
        ),
        ([(("m", "g0"), "one", []), (("m", "g1"), "one", ["g7", "g0"])], "rank 1 has no peer access to rank 0"),
    ],
)
def test_ranks_that_do_not(told, said):
    assert said in compare(told)


def test_ranks_of_several_hosts_that_nvshmem_reaches():
    """Pointers reach none of them, whatever is asked of single ranks within a host."""
    hosts = [(("m", "g0"), "one", []), (("n", "g1"), "two", [])]
    assert compare(hosts, far=True) == ""
    assert "ranks 0 and 2 share one device" in compare([*hosts, hosts[0]], far=True)
    assert "rank 1 has no peer access to rank 2" in compare(
        [hosts[0], (("n", "g1"), "two", ["g2"]), (("n", "g2"), "two", [])], far=True
    )


def test_what_is_asked_for_in_a_group_of_several_hosts(fake_group, monkeypatch):
    told = [(("m", "g0"), "one", []), (("n", "g1"), "two", [])]
    monkeypatch.setattr("overlap.api.fallback._exchange", lambda *_: (compare(told), compare(told, far=True)))
    x = SimpleNamespace(device=torch.device("cuda"))
    assert choose(fake_group, x, 10**9, "nvshmem") == Choice("nvshmem")
    assert "spans 2 hosts" in choose(fake_group, x, 10**9, None).why_serial
    with pytest.raises(UsageError, match="copy_engine is impossible here: the group spans 2 hosts"):
        choose(fake_group, x, 10**9, "copy_engine")


@pytest.mark.parametrize(("backend", "reserved"), [("nvshmem", 1), ("copy_engine", 0), ("collective", 0)])
def test_memory_that_is_reserved_in_a_group_of_several_hosts(fake_group, monkeypatch, backend, reserved):
    from overlap.api import memory

    made = []
    monkeypatch.setattr(memory, "impossible", lambda group, tensor, far=False: "" if far else "spans 2 hosts")
    monkeypatch.setattr(memory.workspace, "reserve", lambda *given: made.append(given))
    operator = SimpleNamespace(name="matmul", realization=Realization(backend=backend))
    memory.reserve_operator(operator, fake_group, {"M": 8}, torch.float16)
    assert len(made) == reserved


def test_a_rank_that_works_on_another_device_than_its_tensors_are_on(monkeypatch):
    """Forgotten by many: each rank's tensors are on a device of its own, and all ranks work on the first."""
    from overlap.api import fallback

    class Group:
        """Stands for a process group."""

    def agreed(what, facts):
        (place, host, closed), elsewhere = facts
        return [(((place[0], "g0"), host, closed), ""), ((place, host, closed), elsewhere)]

    runtime = SimpleNamespace(device=torch.device("cuda:1"), agree=agreed)
    monkeypatch.setattr("overlap.runtime.of_group.runtime_of", lambda group: runtime)
    monkeypatch.setattr(fallback, "_unreachable", lambda device: [])
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="g1"))
    tensor = SimpleNamespace(device=torch.device("cuda:1"))
    assert fallback.impossible(Group(), tensor) == ""
    runtime.device = torch.device("cuda:0")
    said = "tensors of rank 1 are on cuda:1, and its work is on cuda:0"
    assert said in fallback.impossible(Group(), tensor)


def test_programs_that_compute_carry_inputs_and_results():
    for name in ("ldst_inline", "tma_inline"):
        assert check_backend(name, STORING) == check_backend(name, MOVING) == check_backend(name) == name


def test_reserved_programs_carry_gathers_alone():
    assert check_backend("ldst_reserved", MOVING) == "ldst_reserved"
    with pytest.raises(UsageError, match="ldst_reserved moves what a kernel reads, .* is a result") as caught:
        check_backend("ldst_reserved", STORING)
    assert caught.value.help == f"backends: {', '.join(STORING)}"
    with pytest.raises(UsageError, match="ldst_reserved moves what a kernel reads"):
        check_backend("ldst_reserved")


def test_a_backend_may_be_left_to_choose():
    for known in (STORING, MOVING):
        assert check_backend("auto", known) == "auto" and {"copy_engine", "serial"} < set(known)


def test_small_tensors_go_serially(fake_group, reachable, monkeypatch):
    x = torch.empty(1)
    monkeypatch.setenv("OVERLAP_SERIAL_BELOW_BYTES", "1000")
    assert choose(fake_group, x, 1000, None) == Choice("copy_engine")
    assert choose(fake_group, x, 999, None).why_serial == "999 bytes are below serial_below_bytes=1000"
    assert choose(fake_group, x, 999, "copy_engine") == Choice("copy_engine")
    assert choose(fake_group, x, 10**9, "serial") == Choice("serial", "asked for")


@pytest.mark.parametrize(("op", "taken"), [("a2a_gemm", "ldst_reserved"), ("gemm_a2a", "ldst_inline")])
def test_pieces_with_short_rows_go_by_programs(fake_group, reachable, monkeypatch, op, taken):
    """From the setting on, where rows are whole, and where the caller says how, they go as others do."""
    x, problem = torch.empty(1), Problem(op, 4096, 128, 128, torch.float16)
    monkeypatch.setenv("OVERLAP_STRIDED_ROW_BYTES", "128")
    monkeypatch.setenv("OVERLAP_SERIAL_BELOW_BYTES", "1000")

    def way(row_bytes, asked=None, moved=10**9):
        return choose_way(fake_group, x, moved, asked, (), problem, row_bytes).backend

    assert way(126) == taken
    assert way(128) == way(0) == way(126, "copy_engine") == "copy_engine"
    assert way(126, moved=999) == "serial"
    monkeypatch.setenv("OVERLAP_STRIDED_ROW_BYTES", "0")
    assert way(2) == "copy_engine"


@pytest.mark.parametrize(
    ("module", "call", "bytes_"),
    [
        (exchange_gemm, lambda group: exchange_gemm.a2a_gemm(HELD, torch.empty(240, 8).half(), group=group), 60 * 2),
        (gemm_exchange, lambda group: gemm_exchange.gemm_a2a(HELD, torch.empty(60, 180).half(), group=group), 45 * 2),
        (gather_k_gemm, lambda group: gather_k_gemm.ag_gemm_k(HELD, torch.empty(240, 8).half(), group=group), 60 * 2),
    ],
)
def test_operators_say_how_long_the_rows_of_their_pieces_are(fake_group, reachable, monkeypatch, module, call, bytes_):
    told = []

    def chosen(group, x, moved_bytes, asked, reasons, problem, row_bytes):
        told.append(row_bytes)
        raise InterruptedError

    monkeypatch.setattr(module, "choose_way", chosen)
    with pytest.raises(InterruptedError):
        call(fake_group)
    assert told == [bytes_]


@pytest.mark.parametrize(("rows", "backend"), [(23, "serial"), (24, "copy_engine")])
def test_an_all_reduce_is_serial_below_twice_the_line(fake_group, reachable, monkeypatch, rows, backend):
    """Its second half hides behind nothing."""
    chosen = []

    def watched(*given):
        chosen.append(choose_way(*given).backend)
        raise InterruptedError

    monkeypatch.setenv("OVERLAP_SERIAL_BELOW_BYTES", str(12 * 100 * 2))
    monkeypatch.setattr(reduce_gemm, "choose_way", watched)
    with pytest.raises(InterruptedError):
        reduce_gemm.gemm_ar(torch.empty(rows, 8).half(), torch.empty(8, 100).half(), group=fake_group)
    assert chosen == [backend]


def test_what_is_impossible_is_a_fallback_or_a_refusal(fake_group):
    x = torch.empty(1)
    assert choose(fake_group, x, 10**9, None) == Choice("serial", "no peer copies for tensors on cpu", forced=True)
    with pytest.raises(UsageError, match="copy_engine is impossible here: no peer copies"):
        choose(fake_group, x, 10**9, "copy_engine")


def test_one_rank_has_nothing_to_gather(reachable):
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
    try:
        assert choose(dist.group.WORLD, torch.empty(1), 10**9, None).why_serial == "one rank has nothing to communicate"
    finally:
        dist.destroy_process_group()
    assert choose(None, torch.empty(1), 10**9, None).why_serial == "no process group, so one rank"
