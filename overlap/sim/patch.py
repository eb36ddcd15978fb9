"""Makes `triton.language` interpreted for the time of a run.

Built-in functions get the simulator's builder, jitted functions become callable, and launching a kernel asks the
running world. Everything is put back afterwards; the list of patches is made once a process.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import triton.language as tl
from triton.runtime import interpreter as stock
from triton.runtime.autotuner import Autotuner
from triton.runtime.jit import JITFunction

from overlap import language as words

from . import pynames, shortcuts
from .dtypes import numpy_of
from .externs import nvshmem_twins
from .interpreter import BUILDER, SEMANTIC
from .kernel import kernel_function

_MISSING = object()


def _interpreted(member: Callable[..., Any]) -> Callable[..., Any]:
    inner = inspect.unwrap(member)

    def call(*args: Any, **kwargs: Any) -> Any:
        kwargs["_semantic"] = SEMANTIC
        return inner(*args, **kwargs)

    call.__name__ = getattr(member, "__name__", "builtin")
    return call


def _device_call(self: Any, *args: Any, **kwargs: Any) -> Any:
    kwargs.pop("_semantic", None)
    return kernel_function(self.fn, BUILDER.world.generation).call(*args, **kwargs)


def _launch(self: Any, *args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> Any:
    if not warmup:
        BUILDER.world.launch_from_host(self, grid, args, kwargs)


def _tuned(self: Any, *args: Any, **kwargs: Any) -> Any:
    """Runs one configuration, the world's choice, without timing any."""
    self.nargs = dict(zip(self.arg_names, args, strict=False))
    configs = self.prune_configs(kwargs) if self.early_config_prune else self.configs
    config = self.best_config = configs[BUILDER.world.autotune_choice % len(configs)]
    options = config.all_kwargs()
    if config.pre_hook is not None:
        config.pre_hook({**self.nargs, **kwargs, **options})
    result = self.fn.run(*args, **kwargs, **options)
    self.nargs = None
    return result


def _static_assert(condition: Any, message: str = "") -> None:
    if not condition:
        raise AssertionError(f"static_assert failed: {getattr(message, 'value', message)}")


_patches: list[tuple[Any, str, Any]] = []


def _collect() -> list[tuple[Any, str, Any]]:
    """(object, attribute, replacement) of all patches."""
    if _patches:
        return _patches
    found: list[tuple[Any, str, Any]] = []
    holders = [tl, tl.core, tl.math, tl.tensor, tl.core.tensor_descriptor_base]
    for name in ("tuple", "tensor_descriptor"):
        if hasattr(tl.core, name):
            holders.append(getattr(tl.core, name))
    wrapped: dict[int, Any] = {}
    for holder in holders:
        for name, member in inspect.getmembers(holder):
            if callable(member) and tl.core.is_builtin(member):
                if id(member) not in wrapped:
                    wrapped[id(member)] = _interpreted(member)
                found.append((holder, name, wrapped[id(member)]))
    scope = stock._LangPatchScope()
    stock._patch_lang_tensor(tl.tensor, scope)
    for language in (tl, tl.core):
        stock._patch_lang_core(language, scope)
    stock._patch_reduce_scan(scope)
    found += [(holder, name, holder.__dict__[name]) for holder, name, _ in scope._changes]
    scope.restore()
    for language in (tl, tl.core):
        found += [
            (language, "range", pynames.Range),
            (language, "static_range", pynames.static_range),
            (language, "static_assert", _static_assert),
        ]
        wrapped[id(language.range)] = pynames.Range
        wrapped[id(language.static_range)] = pynames.static_range
        wrapped[id(language.static_assert)] = _static_assert
    found.append((words, "static_range", pynames.static_range))
    found += shortcuts.operators(lambda name: wrapped.get(id(getattr(tl.tensor, name, None))))
    load = wrapped[id(tl.load)] = shortcuts.quick_load(wrapped[id(tl.load)])
    found += [(language, "load", load) for language in (tl, tl.core)]
    twins = [*pynames.libdevice_twins(), *nvshmem_twins()]
    for module, name, twin in twins:
        wrapped[id(getattr(module, name))] = twin
    found += twins
    found += [
        (stock, "_get_np_dtype", numpy_of),
        (stock, "interpreter_semantic", SEMANTIC),
        (stock, "interpreter_builder", BUILDER),
        (stock.InterpretedFunction, "__call__", _device_call),
        (stock.InterpretedFunction, "run", _launch),
        (JITFunction, "__call__", _device_call),
        (JITFunction, "run", _launch),
        (Autotuner, "run", _tuned),
    ]
    for member in wrapped.values():
        # Triton hashes a kernel by the functions that it names, and takes none that are neither jitted nor its own.
        if inspect.isfunction(member):
            member.__triton_builtin__ = True  # type: ignore[attr-defined]
    pynames.REPLACED.update(wrapped)
    _patches.extend(found)
    return _patches


@contextlib.contextmanager
def interpreted(world: Any) -> Iterator[None]:
    """`triton.language` runs on ``world`` inside."""
    if BUILDER.world is not None:
        raise RuntimeError("one simulation runs at a time")
    saved = []
    BUILDER.world = world
    try:
        for holder, name, replacement in _collect():
            saved.append((holder, name, holder.__dict__.get(name, _MISSING)))
            setattr(holder, name, replacement)
        yield
    finally:
        for holder, name, original in reversed(saved):
            if original is _MISSING:
                delattr(holder, name)
            else:
                setattr(holder, name, original)
        BUILDER.world = None
