"""``overlap check --dtype --memory``: what a plan takes of every rank, and refusals where there is less."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from overlap.cli.check import command
from overlap.errors import ScheduleError


def check(*arguments: str) -> str:
    result = CliRunner().invoke(command, [*arguments, "--shape", "M=100,N=8"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


# Shards of 34, 34 and 32 rows of 8 elements, each from a multiple of 128 elements on: 384 + 384 + 256.


def test_what_a_plan_takes_is_printed_where_it_is_asked_for():
    plain = check("all_gather_ring", "--world", "3")
    asked = check("all_gather_ring", "--world", "3", "--dtype", "fp32").splitlines()
    assert plain.splitlines() == [*asked[:-5], "ok"]
    assert asked[-5:] == [
        "  takes, of fp32 tensors and without a kernel:",
        *(f"    rank {r}: 4,480 bytes (x 4,096, state 384), 2 flags, 2 credits, 1 lane" for r in range(3)),
        "ok",
    ]


def test_a_plan_that_takes_more_than_there_is():
    ring = ("all_gather_ring", "--world", "3")
    assert "fp16 tensors" in check(*ring, "--memory", "3KiB")
    assert check(*ring, "--memory", "2432") == check(*ring, "--memory", "1GiB")
    with pytest.raises(ScheduleError) as caught:
        check(*ring, "--memory", "2431")
    assert "rank 0 takes 2,432 bytes of symmetric memory (x 2,048, state 384), and may take 2,431" in str(caught.value)
    assert caught.value.where is not None and caught.value.where.path.endswith("all_gather_ring.yaml")


def test_counts_that_take_more_than_there_is():
    check("all_to_all_v", "--world", "2", "--tries", "3", "--memory", "1MiB")
    with pytest.raises(ScheduleError, match="plan all_to_all_v: rank . takes"):
        check("all_to_all_v", "--world", "2", "--tries", "3", "--memory", "1KiB")


def test_a_collective_of_a_library_takes_what_the_library_takes():
    assert "takes what the library takes" in check("all_gather", "--path", "direct", "--world", "2", "--dtype", "fp16")
    check("all_gather", "--path", "direct", "--world", "2", "--memory", "0")


@pytest.mark.parametrize("size", ["lots", "1.5GiB", "-1", "4 GB"])
def test_sizes_that_are_none(size):
    result = CliRunner().invoke(
        command, ["all_gather_1d", "--world", "2", "--shape", "M=4", "--memory", size], catch_exceptions=False
    )
    assert result.exit_code == 2 and "write 4096, 512MiB or 2GiB" in result.output
