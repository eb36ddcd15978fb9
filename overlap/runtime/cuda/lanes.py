"""Side streams of a launch, and the events by which streams wait for each other: within a call and from one call to the next."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from .driver import Event, OwnStream, Stream

LANE_PRIORITY = -1
"""Ahead of the grid: what a lane launches is waited for."""
_ORDER: dict[Any, Event] = {}
"""By (device's number, key): the end of the last call outside captures."""
_CAPTURED: dict[Any, tuple[int, Event]] = {}
"""By (device's number, key): the capture that holds the last call recorded in one, and that call's end."""


class Lanes:
    """Side streams by number, each made at its first use by ``make``."""

    def __init__(self, make: Callable[[], Stream]) -> None:
        self._make = make
        self._lanes: dict[int, Stream] = {}
        self._ends: dict[Stream, Event] = {}
        self._made: Event | None = None

    @property
    def _forked(self) -> Event:
        if self._made is None:
            self._made = Event()
        return self._made

    def forks(self, main: Stream, lanes: Sequence[int]) -> list[Stream]:
        """Lanes, each ordered behind what ``main`` holds so far."""
        forked = self._forked
        forked.record(main)
        streams = []
        for lane in lanes:
            found = self._lanes.get(lane)
            if found is None:
                found = self._lanes[lane] = self._make()
                self._ends[found] = Event()
            forked.hold(found)
            streams.append(found)
        return streams

    def behind(self, stream: Stream, other: Stream) -> None:
        """Orders ``stream`` behind what ``other`` holds so far."""
        self._forked.record(other)
        self._forked.hold(stream)

    def join(self, main: Stream, stream: Stream) -> None:
        """Orders ``main`` behind what a lane holds so far."""
        joined = self._ends[stream]
        joined.record(stream)
        joined.hold(main)


def pool_stream(device: torch.device) -> Stream:
    """One of torch's streams of a lane's priority. They are made together and stay, unlike `own_lane`'s."""
    made = torch.cuda.Stream(device, priority=LANE_PRIORITY)
    return Stream(made.cuda_stream)


def own_lane() -> Stream:
    """A stream of a lane's priority that nobody else has."""
    return OwnStream(LANE_PRIORITY)


class InOrder:
    """Around a call on ``main``, which is ordered behind the last one under its key; gives whether it is captured.

    Args:
        place: the device's number and the key.
        main: the caller's stream.
    """

    __slots__ = ("_capture", "_event", "_main", "_place")

    def __init__(self, place: Any, main: Stream) -> None:
        self._place = place
        self._main = main

    def __enter__(self) -> bool:
        main = self._main
        self._capture = capture = capture_of(main) if torch.cuda.is_current_stream_capturing() else 0
        # Neither a call inside a capture nor one outside of it may wait for one that is not.
        if capture:
            held, event = _CAPTURED.get(self._place, (0, None))
            event = event if held == capture else None
        else:
            event = _ORDER.get(self._place)
        self._event = event
        # On one stream calls are in order anyway. Only of the default one it is certain that it is still the same.
        if event is not None and (event.recorded_on or main.cuda_stream):
            event.hold(main)
        return capture != 0

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            return
        event = self._event
        if event is None:
            event = Event()
            if self._capture:
                _CAPTURED[self._place] = (self._capture, event)
            else:
                _ORDER[self._place] = event
        event.record(self._main)


def last_call(place: Any) -> Event:
    """The end of the last call outside captures, under the device's number and a key (`InOrder`)."""
    found = _ORDER.get(place)
    if found is None:
        found = _ORDER[place] = Event()
    return found


def forget_calls() -> None:
    """Drops the events of last calls."""
    _ORDER.clear()
    _CAPTURED.clear()


def capture_of(stream: Stream) -> int:
    """The id of the capture that a stream, which is the current one, takes part in, 0 for none."""
    if not torch.cuda.is_current_stream_capturing():
        return 0
    from cuda.bindings import driver

    return int(driver.cuStreamGetCaptureInfo(stream.cuda_stream)[2])
