"""The compute units of one rank, by when they are free: tiles are handed out in order, each to the first free unit.

Units that are free at the same time are one entry, so a run of any number of tiles costs a few steps.
"""

from __future__ import annotations

from bisect import insort


class Units:
    """``count`` units, all free at ``start``."""

    def __init__(self, count: int, start: float = 0.0) -> None:
        self.count = count
        self._free: list[tuple[float, int]] = [(start, count)]

    @property
    def first(self) -> float:
        """When the first unit is free."""
        return self._free[0][0]

    def delay(self, seconds: float) -> None:
        """All units are free that much later."""
        if seconds:
            self._free = [(time + seconds, count) for time, count in self._free]

    def take(self, tiles: int, seconds: float, ready: float) -> tuple[float, float]:
        """Hands out ``tiles`` tiles of ``seconds`` each, none before ``ready``: when the first begins and the last ends."""
        free = self._free
        if free[-1][0] <= ready and tiles <= self.count and tiles and seconds > 0:
            # All are idle, and there are enough of them.
            end = ready + seconds
            left = self.count - tiles
            self._free = [(ready, left), (end, tiles)] if left else [(end, tiles)]
            return ready, end
        late = 0
        while free and free[0][0] <= ready:
            late += free.pop(0)[1]
        if late:
            free.insert(0, (ready, late))
        start = end = free[0][0]
        if seconds <= 0:
            return start, end
        while tiles > 0:
            at, count = free[0]
            spread = free[-1][0] - at
            if spread < seconds and tiles >= self.count:
                rounds = tiles // self.count
                free[:] = [(time + rounds * seconds, n) for time, n in free]
                tiles -= rounds * self.count
                end = max(end, free[-1][0])
                continue
            del free[0]
            # As many rounds at once as these units can do before the next ones are free.
            rounds = max(1, min(int((free[0][0] - at) / seconds), tiles // count)) if free else 1
            taken = min(count, tiles)
            if taken < count:
                free.insert(0, (at, count - taken))
            tiles -= taken * rounds
            done = at + rounds * seconds
            end = max(end, done)
            self._give_back(done, taken, seconds * 1e-6)
        return start, end

    def _give_back(self, time: float, count: int, same: float) -> None:
        free = self._free
        for i in range(len(free) - 1, -1, -1):
            if abs(free[i][0] - time) < same:
                free[i] = (free[i][0], free[i][1] + count)
                return
            if free[i][0] < time:
                break
        insort(free, (time, count))
