"""Run by test_tune_ranks.py as each of three real ranks over gloo, on the CPU: rank, world, a file for the store."""

import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from overlap.autotune import cache
from overlap.autotune.config import Config
from overlap.autotune.ground import GroupGround, meeting_of
from overlap.autotune.lock import read_lock
from overlap.autotune.search import Search
from overlap.autotune.session import Space, tune
from overlap.autotune.trials import RankMeasurer
from overlap.backends.base import Realization
from overlap.errors import RuntimeContractError, UsageError
from overlap.ops import ag_gemm, gemm_rs
from overlap.ops.tuning import tune as tune_operator

CPU = torch.device("cpu")


def config(split: int) -> Config:
    return Config(Realization(split=split))


def everywhere(value: object) -> list:
    told: list = [None] * dist.get_world_size()
    dist.all_gather_object(told, value)
    return told


def measurer_of(name: str, call, seconds: float = 20.0) -> RankMeasurer:
    meet = meeting_of(dist.group.WORLD, name, seconds)
    return RankMeasurer(GroupGround(dist.group.WORLD, call, CPU, deadline=2.0, meet=meet), meet)


def check_slowest(rank: int, world: int) -> None:
    """All take the time of the slowest rank and rank 0's clock."""
    measurer = measurer_of("slowest", lambda config, group: time.sleep(0.01 * (rank + 1)))
    found = measurer.measure(config(1), 3)
    assert found.ms is not None and found.ms >= 10.0 * world and not found.why
    assert everywhere(found) == [found] * world


def check_failures(rank: int, world: int) -> None:
    """A rank that raises takes the config out, not the job; others wait for it in a collective, or in a meeting."""

    def call(config: Config, group) -> None:
        if config.realization.split == 2 and rank == 1:
            raise ValueError("no room for\nthis")
        if config.realization.split == 4 and rank == world - 1:
            raise RuntimeContractError("half a launch")
        dist.barrier(group)

    measurer = measurer_of("failures", call)
    found = {split: measurer.measure(config(split), 2) for split in (1, 8)}
    assert all(each.ms is not None for each in found.values())
    # Nobody else is at the barrier of a trial that failed on one rank: gloo says so after its time.
    for split, who, why in ((2, 1, "ValueError: no room for"), (4, world - 1, "RuntimeContractError: half a launch")):
        refused = measurer.measure(config(split), 2)
        assert refused.ms is None and refused.why == f"rank {who}: {why}", refused
        assert everywhere(refused) == [refused] * world
        assert measurer.measure(config(1), 2).ms is not None


def check_stall(rank: int, world: int) -> None:
    """A rank that comes late to a verdict costs its time, no more; one that does not come at all is named."""

    def call(config: Config, group) -> None:
        time.sleep(0.3 if config.realization.split == 2 and rank == 0 else 0.0)

    outcome = Search(measurer_of("stall", call), 30.0).run(config(1), [config(2), config(4)])
    assert outcome.winner is not None and outcome.winner.config.realization.split != 2
    assert len(set(map(str, everywhere(outcome.winner)))) == 1


def check_grounds_of_some(rank: int, world: int) -> None:
    """Grounds of some of the ranks leave no group behind, and none has the name of another, whatever its ranks did before."""
    before = len(dist.distributed_c10d._world.pg_names)
    groups = [dist.new_group([0, world - 1]), dist.new_group([0, 1])]
    names = []

    def call(config: Config, group) -> None:
        if names[-1:] != [group.group_name]:
            names.append(group.group_name)
        if config.realization.split == 2:
            raise ValueError("no room")
        dist.barrier(group)

    for turn, group in enumerate((groups[0], groups[0], groups[1], groups[0])):
        if rank not in dist.get_process_group_ranks(group):
            continue
        meet = meeting_of(group, f"some {turn}", 20.0)
        ground = GroupGround(group, call, CPU, deadline=2.0, meet=meet)
        measurer = RankMeasurer(ground, meet)
        found = [measurer.measure(config(split), 1) for split in (1, 2, 1)]
        assert [each.ms is None for each in found] == [False, True, False], found
        ground.close()
    assert len(set(names)) == len(names) and len(names) == 2 * (4 if rank == 0 else 3 if rank == world - 1 else 1), (
        names
    )
    assert len(dist.distributed_c10d._world.pg_names) == before + sum(
        rank in (0, 1 if i else world - 1) for i in range(2)
    )
    for group in groups:
        if rank in dist.get_process_group_ranks(group):
            dist.destroy_process_group(group)
    dist.barrier()


def check_session(rank: int, world: int) -> None:
    """Space, data, trials, cache and lock of one tuning; ranks that differ are told."""
    from overlap.autotune.key import Key

    key = Key("toy", (("M", 100),), "fp32", world, "cpu", source="abc")
    fast = {1: 0.02, 2: 0.001, 4: 0.01}

    def space() -> Space:
        return Space(config(1), tuple(map(config, fast)), predicted={config(2): 1e-3})

    def caller():
        return lambda config, group: time.sleep(fast[config.realization.split])

    lock = Path(os.environ["OVERLAP_CACHE_DIR"]) / "overlap.lock"
    stages = []
    found = tune(
        dist.group.WORLD, key, space, caller, CPU, budget=20, lock=lock, say=lambda stage, *_: stages.append(stage)
    )
    assert found.entry.config == config(2) and found.entry.tried == 3 and found.default_ms > found.entry.ms
    assert bool(stages[:-1]) == (rank == 0)
    assert cache.read(key) == found.entry and read_lock(lock) == (found.entry,)
    json.dumps(found.log)
    other = Key("toy", (("M", 100 << rank),), "fp32", world, "cpu")
    with pytest.raises(UsageError, match="rank"):
        tune(dist.group.WORLD, other, space, caller, CPU, budget=5)

    def broken():
        if rank == world - 1:
            raise MemoryError("no memory")
        return caller()

    with pytest.raises((RuntimeContractError, MemoryError), match="no memory"):
        tune(dist.group.WORLD, key, space, broken, CPU, budget=5)
    with pytest.raises(RuntimeContractError, match="no config of"):
        tune(dist.group.WORLD, key, lambda: Space(config(1), ()), lambda: bad, CPU, budget=5)


def bad(config: Config, group) -> None:
    raise ValueError("never")


def check_operators(rank: int, world: int) -> None:
    """On the CPU an operator has one way, which is rehearsed; uneven pieces as well."""
    found = tune_operator("ag_gemm", {"M": 10, "N": 7, "K": 4}, dtype=torch.float32, budget=5)
    assert found.entry.config.serial and found.entry.key.device == "cpu"
    assert dict(found.entry.key.sizes) == {"M": 10, "N": -(-7 // world) * world, "K": 4}
    tune_operator("gemm_a2a", {"M": 10, "N": 7, "K": 4}, dtype=torch.float32, budget=5)
    with pytest.raises(UsageError, match="did you mean|operators"):
        tune_operator("ag_gem", {"M": 1, "N": 1, "K": 1})
    with pytest.raises(UsageError, match="budget"):
        tune_operator("gemm_rs", {"M": 1, "N": 1, "K": 1}, dtype=torch.float32, budget=0)
    assert ag_gemm(torch.ones(2, 4), torch.ones(4, 3)).shape == (2 * world, 3)
    assert gemm_rs(torch.ones(world, 4), torch.ones(4, 3)).shape == (1, 3)


def main() -> None:
    rank, world, store = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=world, timeout=timedelta(seconds=4)
    )
    for check in (check_slowest, check_failures, check_stall, check_grounds_of_some, check_session, check_operators):
        start = time.monotonic()
        check(rank, world)
        print(f"rank {rank}: {check.__name__} {time.monotonic() - start:.1f} s", flush=True)
    dist.barrier()
    dist.destroy_process_group()
    print(f"rank {rank}: ok")


if __name__ == "__main__":
    main()
