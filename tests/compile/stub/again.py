"""Which calls are made again in C (`overlap.runtime.repeat.front`), and that whatever differs from them goes by Python.

    LD_LIBRARY_PATH=<folder of the stub> python again.py

A call is a graph by its first repetition here. From then on no line of `Known.again` may run for calls like it, and one must for
all others, which end as they would have without the front: with a result, or by raising what is to be raised.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import re
import sys
import threading
import unittest.mock
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from operators import CAPTURED, STUB, Group, load_nothing, told
from triton import knobs
from triton.backends.nvidia import driver as nvidia
from triton.compiler import CompiledKernel
from triton.runtime.driver import driver

from overlap.api.repeat import Known
from overlap.build import device, parse_target
from overlap.errors import DeadlineError, RuntimeContractError, UsageError
from overlap.ops import gemm_ar, last_plan
from overlap.ops.record import _LAST, remember
from overlap.runtime.instances import called_last
from overlap.runtime.launch import launch as launch_layer
from overlap.runtime.native import build
from overlap.runtime.workspace import workspaces

M, N, K = 256, 512, 256
GROUP = Group(2)
MOST_ENTRIES = 256
"""Calls that a front keeps."""
BY_PYTHON: list[Any] = []
"""Known calls that were looked up by Python."""


def random(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(shape).to(dtype)


def call(x: Any = None, w: Any = None, **how: Any) -> torch.Tensor:
    x, w = random(M, K) if x is None else x, random(K, N) if w is None else w
    return gemm_ar(x, w, **{"group": GROUP, "backend": "copy_engine", **how})


def by_front(*tensors: Any, **how: Any) -> torch.Tensor:
    """A call that no line of Python looked up, and its result."""
    BY_PYTHON.clear()
    told()
    y = call(*tensors, **how)
    text = told()
    assert not BY_PYTHON and "launched;" in text, (len(BY_PYTHON), text)
    return y


def by_python(*tensors: Any, graph: bool = True, **how: Any) -> torch.Tensor:
    """A call like a known one that the front left alone."""
    BY_PYTHON.clear()
    told()
    y = call(*tensors, **how)
    assert BY_PYTHON and ("launched;" in told()) == graph
    return y


def raises(kind: type[Exception], *tensors: Any, **how: Any) -> None:
    told()
    try:
        call(*tensors, **how)
    except kind:
        assert "launched;" not in told()
        return
    raise AssertionError(f"no {kind.__name__}")


def become_graph(*tensors: Any, **how: Any) -> None:
    for _ in range(4):
        call(*tensors, **how)


@contextlib.contextmanager
def environment(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]
        if before is not None:
            os.environ[name] = before


def without_it_calls_go_by_their_steps() -> None:
    """It cannot be built here, which is found out once."""
    build._built.cache_clear()
    with unittest.mock.patch.object(build, "FILES", ("nobody_wrote_this.c",)):
        for group in Group(2), Group(2):
            become_graph(group=group)
            assert "launched;" not in _told_of(call, group=group)
    found = build._built.cache_info()
    assert found.misses == 1 and found.hits
    build._built.cache_clear()


def results_are_as_made() -> None:
    x, w = random(M, K), random(K, N)
    first, second = by_front(x, w), by_front(x, w)
    assert first.shape == (M, N) and first.dtype == torch.bfloat16 and first.is_contiguous() and not first.requires_grad
    assert first.data_ptr() != second.data_ptr()
    # Addresses are given to kernels: each of the call's tensors stands among the parameters.
    ctypes.c_int.in_dll(STUB, "stub_tell_kernels").value = 1
    told()
    y = call(x, w)
    text = told()
    ctypes.c_int.in_dll(STUB, "stub_tell_kernels").value = 0
    for tensor in (x, w, y):
        assert tensor.data_ptr().to_bytes(8, "little").hex() in text, text
    assert last_plan("gemm_ar").backend == "copy_engine"
    gone = weakref.ref(y)
    del y, tensor
    gc.collect()
    assert gone() is None, "somebody keeps a result"


def what_differs_goes_another_way() -> None:
    kept = random(M * K + 8)
    other = {
        "rows": (random(M // 2, K), None),
        "strides": (random(K, M).t(), None),
        "alignment": (kept[4:-4].view(M, K), None),
        "dtype": (random(M, K, dtype=torch.float16), random(K, N, dtype=torch.float16)),
    }
    for tensors in other.values():
        call(*tensors)
        by_python(*tensors)
        by_front(*tensors)
        by_front()
        said = last_plan("gemm_ar")
        x, _ = tensors
        by_front(*tensors)
        assert (last_plan("gemm_ar") != said) == (x.shape != (M, K) or x.dtype != torch.bfloat16)
    raises(UsageError, random(M, K + 1))
    raises(UsageError, torch._neg_view(random(M, K)))
    out = random(M, N)
    become_graph(out=out)
    assert by_front(out=out) is out
    both = torch.zeros(M * K + M * N, dtype=torch.bfloat16)
    x, within = both[: M * K].view(M, K), both[M * K - 8 : M * K - 8 + M * N].view(M, N)
    raises(UsageError, x, out=within)
    by_front(x, out=both[M * K :].view(M, N))


def settings_are_read() -> None:
    by_front()
    with environment("OVERLAP_SUM_SMS", "3"):
        BY_PYTHON.clear()
        told()
        call()
        assert "launched;" not in told() and not BY_PYTHON, "a first call under these settings"
    by_front()
    with environment("NOBODYS", "3"):
        by_front()
    was = os.environ
    words = {**was._data, b"OVERLAP_SUM_SMS": b"3"}
    other = os._Environ(words, was.encodekey, was.decodekey, was.encodevalue, was.decodevalue)
    with unittest.mock.patch.object(os, "environ", other):
        by_python()
    by_front()


def who_watches_is_told() -> None:
    seen: list[Any] = []
    knobs.runtime.launch_enter_hook.add(seen.append)
    by_python(graph=False)
    knobs.runtime.launch_enter_hook.remove(seen.append)
    assert seen
    by_front()
    CAPTURED.value = 1
    by_python(graph=False)
    CAPTURED.value = 0
    by_front()
    launch_layer.STEP_FILTER = lambda _, steps: steps
    BY_PYTHON.clear()
    told()
    call()
    launch_layer.STEP_FILTER = None
    assert "launched;" not in told()
    by_front()

    class Watched(torch.Tensor):
        pass

    BY_PYTHON.clear()
    told()
    with contextlib.suppress(Exception):
        call(random(M, K).as_subclass(Watched))
    assert "launched;" not in told() and not BY_PYTHON
    parameter = torch.nn.Parameter(random(K, N))
    raises(UsageError, None, parameter)
    with torch.no_grad():
        by_front(None, parameter)


def other_streams_and_threads_are_ordered() -> None:
    runtime = GROUP.overlap_runtime
    by_front()
    runtime.main = type(runtime.main)(0x77000)
    told()
    call()
    text = told()
    assert re.fullmatch(r"behind (\w+) 0 on 0x77000;launch on 0x77000;.*launched;record \1 on 0x77000;", text), text
    runtime.main = type(runtime.main)(0)
    told()
    call()
    assert told().startswith("behind "), "the last call was on another stream"
    told()
    call()
    assert not told().startswith("behind "), "the default stream is in order with itself"
    failed: list[BaseException] = []

    def many() -> None:
        try:
            for _ in range(50):
                assert call().shape == (M, N)
                ctypes.memset(ctypes.addressof((ctypes.c_char * 1).in_dll(STUB, "stub_told")), 0, 1)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=many) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed, failed


def what_an_earlier_launch_left_is_raised() -> None:
    by_front()
    (workspace,) = [each for each in workspaces(GROUP.overlap_runtime).values() if each.memory is not None][:1]
    word = workspace.memory.fault.word
    word.value = 1
    raises(DeadlineError)
    word.value = 0
    raises(DeadlineError)
    workspace.error = None
    by_front()
    workspace.poison(RuntimeContractError("a step"))
    raises(RuntimeContractError)
    workspace.error = None
    by_front()


def memory_that_grows_takes_its_calls_along() -> None:
    group = Group(2)
    become_graph(group=group)
    by_front(group=group)
    ready = [known._launch for known in group.overlap_runtime.overlap_calls.values()]
    call(random(32 * M, K), group=group)
    assert "launched;" not in _told_of(call, group=group), "its graph went with the memory"
    gc.collect()
    assert [each() for each in ready] == [None]
    become_graph(group=group)
    by_front(group=group)
    group.overlap_runtime.overlap_calls.clear()
    assert "launched;" not in _told_of(call, group=group), "nothing is known any more"
    become_graph(group=group)
    by_front(group=group)


def entries_end_and_others_come() -> None:
    """What ends with an entry may add others; what does not compare is not kept."""
    group = Group(2)
    become_graph(group=group)
    calls = group.overlap_runtime.overlap_calls
    (known,) = (each for each in calls.values() if each._launch().graph is not None)
    kept: weakref.WeakSet[Any] = weakref.WeakSet()
    tensors = random(M, K), random(K, N)

    class Head:
        def __init__(self, followed: bool) -> None:
            self.followed = followed
            kept.add(self)
            calls.take(known._launch(), self, tensors, (), False, (0, 0), known._makings, (id, None, False))

        def __del__(self) -> None:
            if self.followed:
                Head(False)

    for _ in range(MOST_ENTRIES + 1):
        Head(True)
    assert 0 < len(kept) <= MOST_ENTRIES, len(kept)
    (last,) = (head for head in kept if head.followed)
    last.followed = False
    Head.__eq__ = lambda self, other: 1 / 0  # type: ignore[method-assign, assignment]
    count = len(kept)
    Head(False)
    assert len(kept) == count
    calls.clear()
    del last
    gc.collect()
    assert not kept


def _told_of(run: Callable[..., Any], **how: Any) -> str:
    told()
    run(**how)
    return told()


def nothing_is_left_behind() -> None:
    """References are what they were, whether calls are made in C, are sent another way at each place where they can, or end."""
    runtime = GROUP.overlap_runtime
    calls = runtime.overlap_calls
    x, w = random(M, K), random(K, N)
    ready = [
        each for each in (known._launch() for known in calls.values()) if each is not None and each.graph is not None
    ]
    things = [x, w, runtime, calls, torch.bfloat16, os.environ, torch.empty, remember, called_last]
    things += [
        thing
        for each in ready
        for thing in (each, each.workspace, each.memory, each.instance, each.graph, each.graph.last)
    ]

    def counted() -> list[int]:
        gc.collect()
        return [sys.getrefcount(thing) for thing in things]

    def many(**how: Any) -> None:
        for _ in range(20):
            told()
            call(x, w, **how)

    many()
    before, objects = counted(), len(gc.get_objects())
    many()
    many(out=random(M, N))
    knobs.runtime.launch_enter_hook.add(print_nothing)
    many()
    knobs.runtime.launch_enter_hook.remove(print_nothing)
    CAPTURED.value = 1
    many()
    CAPTURED.value = 0
    with environment("NOBODYS", "3"):
        many()
    many()
    assert counted() == before, [(n, m, thing) for n, m, thing in zip(before, counted(), things, strict=True) if n != m]
    assert len(gc.get_objects()) < objects + 20
    runtime.main = type(runtime.main)(0x77000)
    blocks = sys.getallocatedblocks()
    for _ in range(50):
        many()
    assert sys.getallocatedblocks() < blocks + 500, "1000 calls leave something behind"
    things.clear(), ready.clear()
    _LAST.clear(), BY_PYTHON.clear()
    said = [weakref.ref(known._said) for known in calls.values()]
    calls.clear()
    gc.collect()
    assert calls.front is None and not any(each() for each in said), "an entry is kept"


def print_nothing(*_: Any) -> None:
    """A hook."""


def main() -> None:
    os.environ["OVERLAP_LANE_GRAPHS"], os.environ["OVERLAP_CALL_GRAPHS"] = "0", "1"
    CompiledKernel._init_handles = load_nothing
    device._OnMeta = contextlib.nullcontext  # tensors are the CPU's
    again = Known.again
    Known.again = lambda self, *how: (BY_PYTHON.append(self), again(self, *how))[1]  # type: ignore[method-assign]
    with device.planned_device(parse_target("sm_90")):
        driver._active.utils = nvidia.CudaUtils()
        without_it_calls_go_by_their_steps()
        become_graph()
        for check in (
            results_are_as_made,
            what_differs_goes_another_way,
            settings_are_read,
            who_watches_is_told,
            other_streams_and_threads_are_ordered,
            what_an_earlier_launch_left_is_raised,
            memory_that_grows_takes_its_calls_along,
            entries_end_and_others_come,
            nothing_is_left_behind,
        ):
            check()
    print("calls that are alike are made again in C, and no others")


if __name__ == "__main__":
    main()
