"""Simulated ranks: a generated module, run and checked on a CPU against the original kernel.

    report = check_module("OUT.py", world=4, shape={"M": 130, "N": 64, "K": 64}, dtype="bf16", seeds=range(20))
    report = check_plan(plan, seeds=range(20))                     # a plan alone, without a kernel
    report = check_ranks(body, world=4, seeds=range(20))           # host code and kernels of your own

A `World` runs host code and kernels of several ranks as fibres, one at a time, in an order that a seed decides; clocks
and shadow memory find races whether or not the numbers came out right.
"""

from .explore import Exploration, ScriptedChooser, explore
from .fibres import RandomChooser
from .plan_check import PlanCheck, check_plan
from .ranks import check_ranks
from .report import Fault, PlanReport, RanksReport, SimReport
from .runtime import SimGroup, SimRuntime
from .verify import ModuleCheck, check_module
from .world import World

__all__ = [
    "Exploration",
    "Fault",
    "ModuleCheck",
    "PlanCheck",
    "PlanReport",
    "RandomChooser",
    "RanksReport",
    "ScriptedChooser",
    "SimGroup",
    "SimReport",
    "SimRuntime",
    "World",
    "check_module",
    "check_plan",
    "check_ranks",
    "explore",
]
