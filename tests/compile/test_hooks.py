"""Triton's hooks are the process's: other people's stay where they are, and are called for our kernels too."""

import pytest
from triton import knobs
from triton.compiler import CompiledKernel

from overlap.build import compile_kernel, parse_target
from overlap.build.device import planned_device
from overlap.errors import UnsupportedError
from overlap.runtime.cuda.bound_launch import bound_launch
from overlap.runtime.cuda.compiled import compiled
from overlap.runtime.kernels.entry import wait_kernel

from .support import state

TARGET = parse_target("sm_90")
GRID = (1, 1, 1)


class Foreign:
    """Somebody's hooks, which count their calls."""

    def __init__(self) -> None:
        self.calls = {"cache": 0, "compiled": 0, "listener": 0}

    def cache(self, *args, **kwargs):
        self.calls["cache"] += 1

    def compiled(self, *args, **kwargs):
        self.calls["compiled"] += 1

    def listener(self, **kwargs):
        self.calls["listener"] += 1

    def launch(self, metadata):
        """Before every launch."""


@pytest.fixture
def foreign(monkeypatch):
    """Hooks that were there before; afterwards they still are."""
    hooks = Foreign()
    wait_kernel.device_caches.clear()
    with knobs.runtime.scope(), knobs.compilation.scope():
        knobs.runtime.jit_cache_hook = cache = hooks.cache
        knobs.runtime.jit_post_compile_hook = after = hooks.compiled
        knobs.compilation.listener = listener = hooks.listener
        knobs.runtime.launch_enter_hook.add(hooks.launch)
        monkeypatch.setattr(CompiledKernel, "_init_handles", lambda self: None)
        try:
            with planned_device(TARGET):
                yield hooks
        finally:
            chain = list(knobs.runtime.launch_enter_hook.calls)
            knobs.runtime.launch_enter_hook.remove(hooks.launch)
            wait_kernel.device_caches.clear()
        assert (knobs.runtime.jit_cache_hook, knobs.runtime.jit_post_compile_hook) == (cache, after)
        assert knobs.compilation.listener is listener and hooks.launch in chain


def arguments():
    return {"flag": state(), "state": state(), "num_warps": 1}


def test_hooks_are_called_when_an_operator_compiles_its_kernels(foreign):
    made = compiled(wait_kernel, GRID, arguments())
    assert made.name == "wait_kernel"
    assert foreign.calls == {"cache": 1, "compiled": 1, "listener": 1}


def test_a_launch_that_was_bound_passes_the_launch_hooks_on(foreign):
    made, seen = compiled(wait_kernel, GRID, arguments()), []
    made._run, made.function = lambda *args: seen.extend(args), 0
    launch = bound_launch(wait_kernel, made, GRID, arguments())
    launch(type("Stream", (), {"cuda_stream": 7}))
    assert knobs.runtime.launch_enter_hook in seen and 7 in seen


def test_hooks_are_called_when_a_kernel_is_built_without_a_gpu(foreign):
    compile_kernel(wait_kernel, {"flag": state(), "state": state()}, TARGET, {"num_warps": 1})
    assert foreign.calls["listener"] == 1


def test_a_hook_that_takes_compilation_over_is_named(foreign, monkeypatch):
    monkeypatch.setattr(knobs.runtime, "jit_cache_hook", lambda *args, **kwargs: True)
    with pytest.raises(UnsupportedError, match="has taken over the compilation of `wait_kernel`"):
        compiled(wait_kernel, GRID, arguments())
    monkeypatch.setattr(knobs.runtime, "jit_cache_hook", foreign.cache)
