"""Counts that change from call to call, and what ranks receive by the rule of ``all_to_all_single`` with splits."""

from __future__ import annotations

import random

import torch

Counts = list[list[int]]


def counts_of(call: int, world: int, most: int) -> Counts:
    """How many rows each rank sends to each one in a call, the same on every rank; many are 0."""
    dice = random.Random(call * 64 + world)
    match call % 6:
        case 1:
            return [[0] * world for _ in range(world)]
        case 2:  # one rank sends to all
            return [
                [dice.randint(1, most) if i == call // 6 % world else 0 for _ in range(world)] for i in range(world)
            ]
        case 3:  # one rank gets all
            return [
                [dice.randint(1, most) if j == call // 6 % world else 0 for j in range(world)] for _ in range(world)
            ]
        case 4:  # everyone keeps what it has
            return [[dice.randint(1, most) if i == j else 0 for j in range(world)] for i in range(world)]
    return [[dice.choice((0, 0, 1, dice.randint(2, most))) for _ in range(world)] for _ in range(world)]


def received(counts: Counts, rows: list[torch.Tensor], rank: int) -> torch.Tensor:
    """What ``rank`` receives, where ``rows[i]`` is what rank i sends, by destination."""
    pieces = [data.split(counts[i])[rank] for i, data in enumerate(rows)]
    return torch.cat(pieces)
