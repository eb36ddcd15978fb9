"""A process beside each rank's pytest, for what a test process cannot survive or must set before CUDA starts.

`run_on_every_rank` starts ``python -m tests.multigpu.children SCENARIO ARGUMENT`` on every rank at once, as a group of
its own, with a time limit. A scenario prints one JSON object.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


@dataclass(frozen=True)
class Child:
    """How a rank's process ended and what it printed."""

    status: int
    output: str
    errors: str

    @property
    def found(self) -> dict:
        """The JSON object that the scenario printed."""
        lines = [line for line in self.output.splitlines() if line.startswith("{")]
        return json.loads(lines[-1]) if lines else {}

    @property
    def text(self) -> str:
        return f"exit status {self.status}\n{self.output}\n{self.errors}"


def run_on_every_rank(scenario: str, argument: str, *, env: dict[str, str] | None = None, seconds: float) -> Child:
    """Runs a scenario beside every rank's test process; this rank's child."""
    from .conftest import meet

    port = 0
    if os.environ["RANK"] == "0":
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
    port = meet(f"port for {scenario} {argument}", port)[0]
    kept = {k: v for k, v in os.environ.items() if not k.startswith("TORCHELASTIC") and k != "OVERLAP_DEADLINE_S"}
    kept.update({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), **(env or {})})
    command = [sys.executable, "-m", "tests.multigpu.children", scenario, argument]
    try:
        done = subprocess.run(command, cwd=ROOT, env=kept, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired as late:
        parts = [p.decode() if isinstance(p, bytes) else p or "" for p in (late.stdout, late.stderr)]
        return Child(-1, parts[0], f"{parts[1]}\nnot done after {seconds} s")
    return Child(done.returncode, done.stdout, done.stderr)


class Scenario:
    """What every scenario starts with: a group, a compiled module a plan, and a product on the group.

    Args:
        plans: names of plans, which go by copy engine, or of `REALIZATIONS`.
    """

    def __init__(self, *plans: str) -> None:
        import torch
        import torch.distributed as dist
        import triton

        from overlap.annotate.source import SourceUnit
        from overlap.codegen.module_io import load_module
        from overlap.pipeline import Request, compile_source
        from tests.support.compilations import settle_keys
        from tests.support.ranks import WAYS, template
        from tests.support.realizations import REALIZATIONS, Realized

        self.rank, self.world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.last = self.rank == self.world - 1
        settle_keys()  # as of what was compiled ahead
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group("cpu:gloo,cuda:nccl")
        triton.set_allocator(lambda size, align, stream: torch.empty(size, device="cuda", dtype=torch.int8))
        # Triton reads a kernel's source when it compiles it: the folder stays until the process ends.
        self.folder = tempfile.TemporaryDirectory(prefix="overlap_child_")
        self.modules = {}
        self.on = {}
        for number, plan in enumerate(plans):
            on = next((on for known, on, *_ in WAYS.values() if known == plan), "")
            how = REALIZATIONS.get(plan) or Realized(plan, on, "copy_engine", "grouped_gemm")
            source = SourceUnit.from_file(str(ROOT / template(how.kernel)))
            path = Path(self.folder.name) / f"module_{number}.py"
            path.write_text(compile_source(Request(source, plan=how.plan, on=how.on, backend=how.backend)).module.text)
            self.modules[plan], self.on[plan] = load_module(str(path)), how.on
        self.module = self.modules[plans[0]]
        self.group = dist.group.WORLD
        self.product = self.make(plans[0], 515)

    def make(self, plan: str, m: int, **options):
        """A product of ``m`` rows for the module of a plan."""
        import torch

        from tests.support.ranks import Product

        return Product(self.group, m, 136, 96, torch.float16, on=self.on[plan], **options)

    def survive(self) -> None:
        """Launches on with a rank missing, and prints what that raised and when."""
        from overlap.errors import OverlapError
        from overlap.runtime.workspace import check

        start = time.monotonic()
        found: dict = {"error": None}
        try:
            # More launches than the rank that goes has enqueued.
            for seed in range(40):
                self.product.call(self.module, seed)
                check(self.group)
        except OverlapError as error:
            found = {"error": type(error).__name__, "message": str(error), "seconds": time.monotonic() - start}
        try:
            self.make(next(iter(self.modules)), 64).call(self.module, 0)
            found["first call of another shape"] = "nothing"
        except OverlapError as error:
            found["first call of another shape"] = type(error).__name__
        print(json.dumps(found), flush=True)
        # The store may be gone with the rank that held it; leaving in order is not what is tested.
        os._exit(0)


def killed_before_a_launch(plan: str) -> None:
    """The last rank dies between two launches."""
    scenario = Scenario(plan)
    for seed in range(3):
        scenario.product.check(scenario.module, seed)
    if scenario.last:
        os.kill(os.getpid(), signal.SIGKILL)
    scenario.survive()


def killed_in_a_launch(plan: str) -> None:
    """The last rank dies with launches enqueued and running."""
    import torch

    scenario = Scenario(plan)
    scenario.product.check(scenario.module, 0)
    if scenario.last:
        for seed in range(20):
            torch.cuda._sleep(10_000_000)
            scenario.product.call(scenario.module, seed)
        os.kill(os.getpid(), signal.SIGKILL)
    scenario.survive()


def killed_in_words(carried_by: str) -> None:
    """The last rank dies with low-latency collectives enqueued and running."""
    import torch
    import torch.distributed as dist

    from overlap.errors import OverlapError
    from overlap.runtime.of_group import runtime_of
    from overlap.runtime.packets.low_latency import low_latency_of
    from overlap.runtime.workspace import check
    from tests.support.compilations import settle_keys

    settle_keys()
    os.environ["OVERLAP_LOW_LATENCY_BELOW_BYTES"] = "1000000"
    os.environ["OVERLAP_LOW_LATENCY_BLOCKS_FROM_BYTES"] = "0" if carried_by == "blocks" else "1000000"
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("cpu:gloo,cuda:nccl")
    last = dist.get_rank() == dist.get_world_size() - 1
    words = low_latency_of(runtime_of(None))
    x, out = (torch.ones(1000, device="cuda") for _ in range(2))
    words.all_reduce(x, out)
    torch.cuda.synchronize()
    if last:
        for _ in range(20):
            torch.cuda._sleep(10_000_000)
            words.all_reduce(x, out)
        os.kill(os.getpid(), signal.SIGKILL)
    start, found = time.monotonic(), {"error": None}
    try:
        for _ in range(40):
            words.all_reduce(x, out)
            check(None)
    except OverlapError as error:
        found = {"error": type(error).__name__, "message": str(error), "seconds": time.monotonic() - start}
    print(json.dumps(found), flush=True)
    os._exit(0)


def raises_before_a_launch(plan: str) -> None:
    """The last rank raises in its own code, and its interpreter ends."""
    scenario = Scenario(plan)
    for seed in range(3):
        scenario.product.check(scenario.module, seed)
    if scenario.last:
        raise ValueError("in the user's own code")
    scenario.survive()


def ends(how: str) -> None:
    """A script that just ends, with a graph and two shapes alive."""
    import torch
    import torch.distributed as dist

    scenario = Scenario("all_gather_1d")
    for m in (64, 515):
        scenario.make("all_gather_1d", m).check(scenario.module, 0)
    inputs = scenario.product.inputs(0)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        scenario.module.matmul(*inputs, group=scenario.group, sizes=scenario.product.sizes)
    graph.replay()
    torch.cuda.synchronize()
    if how == "destroyed":
        dist.destroy_process_group()


def right(plans: str) -> None:
    """Counts wrong results, eager and captured, of a list of plans."""
    import torch

    from overlap.runtime.cuda.runtime import runtime_for_group
    from overlap.runtime.workspace import release

    scenario = Scenario(*plans.split(","))
    eager, captured = [], []
    for plan, module in scenario.modules.items():
        product = scenario.make(plan, 515)
        for seed in range(20):
            for m in (515, 64, 1):
                one = scenario.make(plan, m)
                eager.append(one.wrong(*one.call(module, seed)))
        inputs = [t.clone() for t in product.inputs(0)]
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = module.matmul(*inputs, group=scenario.group, sizes=product.sizes)
        for seed in range(20):
            for held, new in zip(inputs, product.inputs(seed), strict=True):
                held.copy_(new)
            result.fill_(float("nan"))
            graph.replay()
            captured.append(product.wrong(result, product.wanted(seed)))
    found = {
        "eager": [int(torch.stack(eager).sum()), len(eager)],
        "captured": [int(torch.stack(captured).sum()), len(captured)],
        "provider": runtime_for_group(scenario.group).provider.name,
    }
    print(json.dumps(found), flush=True)
    release(scenario.group)
    torch.distributed.destroy_process_group()


def right_by(realizations: str) -> None:
    """Wrong results, eager, of realizations: each one's number, one call of several shapes after the other."""
    import torch

    from overlap.runtime.workspace import release

    scenario = Scenario(*realizations.split(";"))
    found = {}
    for name, module in scenario.modules.items():
        wrong = []
        for seed in range(5):
            for m in (515, 64, 1):
                one = scenario.make(name, m)
                wrong.append(one.wrong(*one.call(module, seed)))
        found[name] = [int(torch.stack(wrong).sum()), len(wrong)]
    print(json.dumps(found), flush=True)
    release(scenario.group)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    globals()[sys.argv[1]](sys.argv[2])
