"""Names and signatures of the device words, pure: codegen emits them by name without importing Triton.

The Triton functions of the same names are in `overlap.language`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Word:
    """A device word: its name, its parameters and what it does, in one line.

    ``nvidia`` marks words whose code is NVIDIA assembly; kernels that use one do not build for AMD.
    """

    name: str
    params: tuple[str, ...]
    summary: str
    nvidia: bool = False


WORDS = {
    word.name: word
    for word in (
        Word("now", ("state",), "this launch's epoch (int64)"),
        Word("position", (), "this program's position in launch order, on a grid of any dimensions"),
        Word("find_run", ("table", "tile"), "the run that holds position `tile`, as an offset into the table"),
        Word("runs", ("table",), "number of runs in a table"),
        Word("run_at", ("table", "number"), "run `number`, as an offset into the table"),
        Word("rebase", ("table", "run", "tile"), "position inside the run"),
        Word("count", ("table", "run", "axis"), "number of tiles of the run along an axis"),
        Word("origin", ("table", "run", "axis"), "first tile of the run along an axis"),
        Word(
            "place",
            ("table", "run", "tile", "axis", "pid"),
            "coordinate in the whole grid of a coordinate inside the run",
        ),
        Word(
            "wait", ("table", "run", "state", "epoch"), "polls the run's flags; returns the smallest value seen (int64)"
        ),
        Word("after", ("index", "seen"), "`index`, dependent on the wait that returned `seen`"),
        Word("after_async", ("index", "seen"), "as `after`, and orders TMA loads behind it", nvidia=True),
        Word("advanced", ("value", "iterations", "step"), "a loop's pointer or counter, that many iterations later"),
        Word("produced", ("table", "run", "state"), "the tile's stores are done: counts it into the run's chunks"),
        Word(
            "produced_async",
            ("table", "run", "state"),
            "as `produced`, for tiles stored by TMA, and in loops that are flattened",
            nvidia=True,
        ),
        Word("ways", ("table", "run"), "in how many places the tiles of the run are stored"),
        Word(
            "shift",
            ("table", "run", "way", "slots"),
            "from the result's own memory to such a place, in elements (int64)",
        ),
        Word(
            "pushed",
            ("table", "run", "state", "slots"),
            "the tile's stores are done: counts it in, and the last tile of a chunk raises its flag where it went",
        ),
        Word("notify", ("flag", "value"), "all stores of the program, then a release of `value` at system scope"),
    )
}
