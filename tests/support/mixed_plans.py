"""Plans whose operations are carried out by different backends, as text."""

from __future__ import annotations


def gather(even: str, odd: str, *, channels: int = 2) -> str:
    """An all-gather: operations of even steps by one backend, those of odd steps by the other, in a channel each or in one."""
    return f"""
plan: gather_mixed
before: shard(rank)
after: whole
ops:
  - for: step in range(1, world)
    let: {{peer: (rank + step) % world}}
    do:
      - {{when: step % 2 == 0, move: shard(peer), from: peer, to: rank, backend: {even}}}
      - {{when: step % 2 == 1, move: shard(peer), from: peer, to: rank, backend: {odd}, channel: {channels - 1}}}
"""


def ring(even: str, odd: str) -> str:
    """A ring in which hops of even and of odd steps are carried out by different backends: each awaits one of the other."""
    return f"""
plan: ring_mixed
before: shard(rank)
after: whole
ops:
  - for: step in range(1, world, 2)
    let: {{next: (rank + 1) % world}}
    label: odd
    move: shard((rank + step) % world)
    from: next
    to: rank
    backend: {odd}
    depends: [{{on: even, rank: next, step: step - 1, when: step > 1}}]
  - for: step in range(2, world, 2)
    let: {{next: (rank + 1) % world}}
    label: even
    move: shard((rank + step) % world)
    from: next
    to: rank
    channel: 1
    backend: {even}
    depends: [{{on: odd, rank: next, step: step - 1}}]
"""


def reduce_scatter(near: str, far: str) -> str:
    """A reduce-scatter: what goes to the next rank by one backend, the rest by the other."""
    return f"""
plan: reduce_scatter_mixed
before: whole
after: shard(rank)
ops:
  - for: step in range(1, world)
    let: {{peer: (rank + step) % world}}
    do:
      - {{when: step == 1, push: shard(peer), to: peer, reduce: sum, backend: {near}}}
      - {{when: step > 1, push: shard(peer), to: peer, reduce: sum, backend: {far}, channel: 1}}
"""


def all_reduce(first: str, last: str) -> str:
    """One shot: whole partial results to the next rank by one backend, to the others by the other."""
    return f"""
plan: all_reduce_mixed
before: whole
after: whole
ops:
  - for: step in range(1, world)
    let: {{peer: (rank + step) % world}}
    do:
      - {{when: step == 1, push: whole, to: peer, reduce: sum, backend: {first}}}
      - {{when: step > 1, push: whole, to: peer, reduce: sum, backend: {last}, channel: 1}}
"""
