"""Calls of a test without GPUs, for what they have Triton compile: each kernel that ranks will launch, under the same key.

They are made on a runtime that enqueues nothing and asks Triton for each kernel as a GPU's runtime does, with arguments of the
same types, values and alignments. What is compiled lies in Triton's cache then, where the ranks look for it.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import pytest
import torch
from triton import knobs
from triton.backends.nvidia import driver

from bench.null_runtime import NullGroup, NullRuntime
from overlap.annotate.source import SourceUnit
from overlap.backends.bitcode import find_library
from overlap.build import device, parse_target
from overlap.chunkplan.mesh import parse_mesh
from overlap.codegen.module_io import load_module
from overlap.pipeline import Request, compile_source
from overlap.runtime.group.reach import nodes_of
from overlap.runtime.kernels.entry import wait_kernel
from overlap.runtime.nvshmem.device_code import link_options, stand_in_options
from overlap.runtime.packets.kernels import wait_packets_kernel

from .operands import unfilled
from .ranks import Product

ROOT = Path(__file__).parent.parent.parent
PARTS = 4
"""Of a test of operators, whose calls take little time and whose kernels, ten or so, a lot."""
Call = tuple[Sequence[int], torch.dtype]
"""Sizes M, N and K, and the dtype of a product."""


class Rehearsal(NamedTuple):
    """The calls of the test that is called ``test``: ``play(group, *arguments)`` makes those of one rank.

    ``world``: ranks of the group; 0: all. ``parts``: so many processes play it, and each compiles its share of the kernels.
    ``node``: ranks of a node; 0: all of them are on one, and reach each other by pointers.
    """

    test: str
    play: Callable[..., None]
    arguments: tuple[Any, ...]
    world: int = 0
    parts: int = 1
    node: int = 0


def products(
    test: str, source: str, way: Sequence[str], *calls: Call, world: int = 0, node: int = 0, **options: str
) -> Rehearsal:
    """Of products (`Product`) by one module.

    Args:
        way: plan, communicated tensor and, where it is not the copy engine, backend.
        options: of `generate`.
    """
    arguments = (source, tuple(way), calls, tuple(options.items()))
    return Rehearsal(test, multiply, arguments, world, node=node)


def multiply(
    group: Any, source: str, way: tuple[str, ...], calls: Sequence[Call], options: tuple[tuple[str, str], ...]
) -> None:
    """Calls of one rank on one workspace, in their order: what a kernel is compiled for may depend on it."""
    module = _module(source, way, options)
    for (m, n, k), dtype in calls:
        product = Product(group, m, n, k, dtype, on=way[1])
        inputs = product.arguments(torch.empty(m, k, dtype=dtype), torch.empty(k, n, dtype=dtype))
        module.matmul(*inputs, group=group, sizes=product.sizes)


def _always(given: dict[str, Any]) -> bool:
    return True


def of_tests(
    *tests: Callable[..., None], parts: int = PARTS, node: int = 0, when: Callable[[dict[str, Any]], bool] = _always
) -> Iterator[Rehearsal]:
    """Of tests of operators that make their operands by `tests.support.operands`: one for each set of a test's parameters, in
    which the test is played as it stands, by each rank.

    Besides its parameters a test may take ``group``, ``monkeypatch`` and ``repo``, and ``nodes``, which gives the group for its
    parameter ``node``.

    Args:
        node: ranks of a node, where the test has no such parameter.
        when: of the parameters, whether the test is played.
    """
    for test in tests:
        marks = [mark for mark in getattr(test, "pytestmark", ()) if mark.name == "parametrize"]
        for chosen in itertools.product(*(_named(*mark.args[:2]) for mark in marks)):
            given = {name: value for values in chosen for name, value in values.items()}
            if not when(given):
                continue
            words = "-".join(getattr(value, "__name__", str(value)) for value in given.values())
            called, plays = f"{test.__name__}[{words}]", (partial(test, **given),)
            yield Rehearsal(called, play_test, plays, parts=parts, node=given.get("node", node))


def _named(names: str | Sequence[str], values: Iterable[Any]) -> Iterator[dict[str, Any]]:
    """The sets of values of one ``pytest.mark.parametrize``, by name."""
    split = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    for value in values:
        marked = hasattr(value, "marks")  # a `pytest.param`
        given = value.values if marked else value if len(split) > 1 else [value]
        yield dict(zip(split, given, strict=True))


def play_test(group: Any, test: partial[None]) -> None:
    """What one rank calls in a test."""
    taken = inspect.signature(test).parameters
    with pytest.MonkeyPatch.context() as patch, unfilled():
        given = {"group": group, "nodes": lambda node: group, "monkeypatch": patch, "repo": ROOT}
        test(**{name: value for name, value in given.items() if name in taken and name not in test.keywords})


def generate(
    path: Path, source: str, plan: str, on: str, backend: str | None = None, *, mesh: str = "", **settings: str
) -> Any:
    """The module generated from a file of the checkout, imported from ``path``."""
    unit, levels = SourceUnit.from_file(str(ROOT / source)), parse_mesh(mesh) if mesh else None
    request = Request(unit, plan=plan, on=on, backend=backend, mesh=levels, settings=settings)
    path.write_text(compile_source(request).module.text)
    return load_module(str(path))


@cache
def _module(source: str, way: tuple[str, ...], options: tuple[tuple[str, str], ...]) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        return generate(Path(folder) / "module.py", source, *way, **dict(options))


@contextlib.contextmanager
def planned(target: str) -> Iterator[None]:
    """Triton compiles for a target meanwhile, and host code finds it for its device, with tensors of the CPU."""
    with (
        mock.patch.object(device, "_OnMeta", contextlib.nullcontext),
        mock.patch.object(torch.cuda, "is_current_stream_capturing", lambda: False),
        device.planned_device(parse_target(target)),
    ):
        yield


def rehearse(rehearsal: Rehearsal, ranks: int, part: int = 0) -> None:
    """The calls of every rank, one after the other, under `planned`; of their kernels this part's share is compiled."""
    world = rehearsal.world or ranks

    def of_another_part(*, key: str, fn: Any, **_: Any) -> bool:
        return zlib.crc32(f"{fn.jit_function.cache_key} {key}".encode()) % rehearsal.parts != part

    with mock.patch.object(knobs.runtime, "jit_cache_hook", of_another_part if rehearsal.parts > 1 else None):
        for rank in range(world):
            group = NullGroup(world)
            group.overlap_runtime = CompilingRuntime(world, rank, rehearsal.node)
            rehearsal.play(group, *rehearsal.arguments)


class CompilingRuntime(NullRuntime):
    """Asks Triton for each kernel that `CudaRuntime` would, and enqueues nothing.

    ``node``: ranks of a node, between which there is NVSHMEM; 0: there is none.
    """

    def __init__(self, world: int, rank: int, node: int = 0) -> None:
        super().__init__(world, rank)
        if node:
            self.nodes, self.pes = nodes_of(world, node), tuple(range(world))
            self.linked = link_options() if find_library() else stand_in_options()

    def warm(self, kernel: Any, grid: Any, kwargs: dict[str, Any], **options: Any) -> Callable[..., None]:
        _compile(kernel, grid, (), kwargs)
        return super().warm(kernel, grid, kwargs, **options)

    def resident(self, kernel: Any, grid: Any, kwargs: dict[str, Any]) -> int:
        _compile(kernel, grid, (), kwargs)
        return super().resident(kernel, grid, kwargs)

    def launch(self, kernel: Any, grid: Any, args: tuple[Any, ...], kwargs: dict[str, Any], stream: int) -> None:
        _compile(kernel, grid, args, kwargs)

    def collectives(self, plan: Any, source: Any, target: Any) -> None:
        """A library's kernels are compiled already."""

    def watch(self, state: torch.Tensor, *, packets: bool = False) -> Callable[[], None]:
        # Polls are timed by these kernels (`overlap.runtime.faults.deadline`).
        kernel, word = (wait_packets_kernel, "lines") if packets else (wait_kernel, "flag")
        _compile(kernel, (1, 1, 1), (), {word: state, "state": state, "num_warps": 1})
        return super().watch(state, packets=packets)


def _compile(kernel: Any, grid: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    made = kernel.warmup(*args, grid=grid, **kwargs)
    if made is None:
        return
    # Up to Triton 3.6 what launches a kernel is compiled as well, and linked with the driver.
    if hasattr(driver, "make_launcher") and _driver_is_here():
        meta = getattr(made.metadata, "tensordesc_meta", None)
        parameters = f"{made.src.signature} {sorted(made.src.constants)} {meta}"
        if parameters not in _LAUNCHERS:
            _LAUNCHERS.add(parameters)
            driver.CudaLauncher(made.src, made.metadata)


_LAUNCHERS: set[str] = set()
"""Of which parameters there is one."""


@cache
def _driver_is_here() -> bool:
    try:
        return bool(driver.library_dirs())
    except AssertionError:
        return False
