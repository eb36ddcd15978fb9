"""Binding a launch below autotune, heuristics and foreign decorators."""

import pytest
import torch
import triton
import triton.language as tl

from overlap.backends.base import Realization
from overlap.errors import UsageError
from overlap.runtime.calls.resolve import evaluate_grid, resolve

OURS = ("ol_table", "ol_state")
PLAIN = Realization()


@triton.jit
def inner(x, n, ol_table, ol_state, BLOCK: tl.constexpr, EVEN: tl.constexpr = False, LEFT: tl.constexpr = 7):
    pass


tuned = triton.autotune(
    configs=[triton.Config({"BLOCK": 32}, num_warps=2), triton.Config({"BLOCK": 64}, num_warps=8)], key=["n"]
)(triton.heuristics({"EVEN": lambda args: args["n"] % args["BLOCK"] == 0})(inner))


class Foreign:
    def __init__(self, fn):
        self.fn = fn


def test_first_configuration_then_heuristics_then_defaults():
    bound = resolve(tuned, (1, 64), {}, ours=OURS, realization=PLAIN)
    assert bound.kernel is inner
    assert bound.arguments == {"x": 1, "n": 64, "BLOCK": 32, "EVEN": True, "LEFT": 7}
    assert bound.options["num_warps"] == 2
    assert not set(OURS) & set(bound.arguments)


def test_realization_overrides_configuration_and_feeds_heuristics():
    realization = Realization(meta=(("BLOCK", 48),), num_warps=4)
    bound = resolve(Foreign(tuned), (1, 64), {"num_stages": 5}, ours=OURS, realization=realization)
    assert bound.arguments["BLOCK"] == 48 and bound.arguments["EVEN"] is False
    assert bound.options["num_warps"] == 4 and bound.options["num_stages"] == 5


def test_realization_overrides_heuristics_and_plain_launches():
    assert resolve(tuned, (1, 64), {}, ours=OURS, realization=Realization(meta=(("EVEN", 0),))).arguments["EVEN"] == 0
    realization = Realization(meta=(("BLOCK", 48),), num_stages=2)
    bound = resolve(inner, (1, 64), {"BLOCK": 16, "num_stages": 5}, ours=OURS, realization=realization)
    assert bound.arguments["BLOCK"] == 48 and bound.options["num_stages"] == 2


def test_positional_arguments_skip_ours():
    bound = resolve(inner, (1, 2, 16, True), {}, ours=OURS, realization=PLAIN)
    assert bound.arguments == {"x": 1, "n": 2, "BLOCK": 16, "EVEN": True, "LEFT": 7}


@pytest.mark.parametrize(
    "args,kwargs,message",
    [((1,), {}, "no value for n, BLOCK"), ((1, 2), {"n": 3}, "two values"), (tuple(range(9)), {}, "takes 5 arguments")],
)
def test_wrong_arguments(args, kwargs, message):
    with pytest.raises(UsageError, match=message):
        resolve(inner, args, kwargs, ours=OURS, realization=PLAIN)


def test_grids():
    bound = resolve(inner, (1, 100), {"BLOCK": 32}, ours=OURS, realization=PLAIN)
    assert evaluate_grid(lambda meta: (triton.cdiv(meta["n"], meta["BLOCK"]),), bound) == (4, 1, 1)
    assert evaluate_grid((2, 3), bound) == (2, 3, 1)
    assert evaluate_grid(5, bound) == (5, 1, 1)
    with pytest.raises(UsageError, match="four|not 4"):
        evaluate_grid((1, 1, 1, 1), bound)
    for grid in (None, ("x",), lambda meta: None):
        with pytest.raises(UsageError, match="(?s)the grid is .*one to three numbers"):
            evaluate_grid(grid, bound)


def test_pre_hook_sees_everything():
    seen = {}
    hooked = triton.autotune(
        configs=[triton.Config({"BLOCK": 16}, pre_hook=lambda args: seen.update(args))], key=["n"]
    )(inner)
    resolve(hooked, (torch.empty(3), 2), {}, ours=OURS, realization=PLAIN)
    assert seen["BLOCK"] == 16 and seen["n"] == 2
