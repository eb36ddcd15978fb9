"""Names and signatures of the device words, pure: codegen emits them by name without importing Triton.

The Triton functions of the same names are in `overlap.language`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Word:
    """A device word: its name, its parameters and what it does, in one line.

    ``nvidia`` marks words whose code is NVIDIA assembly; kernels that use one do not build for AMD. ``rule``: what of the
    memory model it obeys, of words that kernels of users may call.
    """

    name: str
    params: tuple[str, ...]
    summary: str
    nvidia: bool = False
    rule: str = ""

    @property
    def public(self) -> bool:
        """Whether kernels of users may call it; the others are for generated kernels."""
        return bool(self.rule)

    @property
    def call(self) -> str:
        """How it is called."""
        return f"ol.{self.name}({', '.join(self.params)})"


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
            "own", ("table", "run"), "whether tiles of the run touch nothing but the rank's own part of the one tensor"
        ),
        Word(
            "own_begin", ("origin", "dim"), "where the rank's own part begins along a dimension of what the kernel sees"
        ),
        Word("own_end", ("origin", "dim"), "where it ends"),
        Word("within", ("index", "begin", "end"), "whether a block that begins at `index` lies between the two"),
        Word(
            "wait_run",
            ("table", "run", "state", "epoch"),
            "polls the run's flags; returns the smallest value seen (int64)",
        ),
        Word(
            "after",
            ("index", "seen"),
            "`index`, a number or pointers, dependent on the wait that returned `seen`",
            rule="plain loads whose address is made from it stay behind the wait",
        ),
        Word(
            "after_async",
            ("index", "seen"),
            "as `after`, for an int32 index of loads through descriptors (TMA)",
            nvidia=True,
            rule="`fence.proxy.async.global` between the acquire and the TMA load",
        ),
        Word("advanced", ("value", "iterations", "step"), "a loop's pointer or counter, that many iterations later"),
        Word("produced", ("table", "run", "state"), "the tile's stores are done: counts it into the run's chunks"),
        Word(
            "produced_async",
            ("table", "run", "state"),
            "as `produced`, for tiles stored by TMA, and in loops that are flattened",
            nvidia=True,
        ),
        Word(
            "produced_once",
            ("table", "run", "state", "tile", "step"),
            "as `produced_async`, for all of the program's tiles of the run at once, behind the last",
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
        Word(
            "spot",
            ("table", "run", "way", "slots"),
            "such a place as the first two coordinates of the descriptor that reaches all; without one, outside of it",
        ),
        Word("shaped", ("tile", "anywhere"), "the tile in the shape that this descriptor stores"),
        Word("lowest", ("slots",), "from the result's own memory to the lowest of all places, in elements (int64)"),
        Word("steps", ("slots", "which"), "extent of the descriptor's first or second dimension"),
        Word("stride", ("pointer", "which"), "stride of the descriptor's first or second dimension, in elements"),
        Word("no_run", ("table",), "a run without chunks"),
        Word(
            "pushed_async",
            ("table", "run", "state", "slots", "WAYS"),
            "as `pushed`, for tiles stored by TMA in at most `WAYS` places, and in loops that are flattened",
            nvidia=True,
        ),
        Word(
            "send_words",
            (
                "table",
                "run",
                "slots",
                "words",
                "made",
                "UNIT",
                "LANES",
                "begin0",
                "block0",
                "begin1",
                "block1",
                "begin2",
                "block2",
            ),
            "the tile's stores are done: sends it in packets to the ranks that add it up",
            nvidia=True,
        ),
        Word(
            "send_words_async",
            (
                "table",
                "run",
                "slots",
                "words",
                "made",
                "UNIT",
                "LANES",
                "begin0",
                "block0",
                "begin1",
                "block1",
                "begin2",
                "block2",
            ),
            "as `send_words`, for tiles stored by TMA",
            nvidia=True,
        ),
        Word(
            "sum_words",
            ("slots", "words", "state", "made", "out", "UNIT", "LANES", "ACCUMULATOR"),
            "the program's share of the rank's part of the result: packets of all ranks, added in rank order",
            nvidia=True,
        ),
        Word(
            "own_tiles",
            ("table",),
            "position of the first tile of the rank's own part, their number where none is finished",
        ),
        Word("next_tile", ("start", "first", "step"), "a program's first tile from position `first` on"),
        Word(
            "wait_summands",
            ("table", "run", "state", "epoch", "SUMMANDS"),
            "as `wait_run`, with a look at all flags at once ahead",
        ),
        Word(
            "finish_tile",
            ("result", "tile", "table", "run", "sums", "SUMMANDS", "at0", "at1", "at2", "ACCUMULATOR"),
            "adds what other ranks have sent of a tile, and stores it through the descriptor `result`",
            nvidia=True,
        ),
        Word("moving", ("moves",), "whether this program moves chunks instead of computing"),
        Word("computing_position", ("moves",), "this program's position in launch order, among those that compute"),
        Word("computing_id", ("moves", "axis"), "`tl.program_id` among the programs that compute"),
        Word("computing_programs", ("moves", "axis"), "`tl.num_programs` of the programs that compute"),
        Word(
            "move_chunks",
            ("moves", "state", "epoch", "TRANSPORT"),
            "this program's part of every move: awaits, copies, counts; the last one in raises the flag",
        ),
        Word(
            "move_chunks_far",
            ("moves", "state", "epoch"),
            "as `move_chunks`, through NVSHMEM to ranks that no pointer reaches",
            nvidia=True,
        ),
        Word(
            "move_chunks_async",
            ("moves", "state", "epoch"),
            "as `move_chunks`, by TMA where a piece of a chunk lets it",
            nvidia=True,
        ),
        Word(
            "move_some",
            ("moves", "state", "epoch", "step", "table", "run"),
            "ahead of a run's wait: this program's parts of the moves that are due or that it may need; the step it is at",
        ),
        Word(
            "move_some_async",
            ("moves", "state", "epoch", "step", "table", "run"),
            "as `move_some`, in loops that are flattened and in kernels that store by TMA",
            nvidia=True,
        ),
        Word(
            "box_memory",
            (),
            "address in shared memory of what `move_some_boxes` and `move_rest_boxes` copy through, taken once a kernel",
            nvidia=True,
        ),
        Word(
            "move_some_boxes",
            ("moves", "state", "epoch", "step", "memory", "table", "run"),
            "as `move_some`, by TMA where a piece of a chunk lets it",
            nvidia=True,
        ),
        Word(
            "move_rest_boxes",
            ("moves", "state", "epoch", "step", "memory"),
            "as `move_rest`, by TMA where a piece of a chunk lets it",
            nvidia=True,
        ),
        Word("move_rest", ("moves", "state", "epoch", "step"), "this program's parts of all moves that are left"),
        Word(
            "move_rest_async",
            ("moves", "state", "epoch", "step"),
            "as `move_rest`, in kernels that store by TMA",
            nvidia=True,
        ),
        Word("log_tile", ("log", "position"), "a tile begins; the offset of its record", nvidia=True),
        Word(
            "log_part",
            ("log", "table", "parts", "LOOPS", "line", "number"),
            "the offset of the record of a part of the tile whose own record is at `line`",
        ),
        Word("log_waits", ("log", "line"), "the tile, or the part of it, begins to wait", nvidia=True),
        Word("log_ready", ("log", "line"), "it has waited", nvidia=True),
        Word("log_ends", ("log", "line"), "the tile has ended", nvidia=True),
        Word("poll", ("flag", "wanted", "state"), "polls a flag until it is at least `wanted`; the value seen (int64)"),
        Word(
            "look",
            ("flags", "there", "wanted"),
            "the least of a block of flags, as far as they are `there`, seen at once (int64)",
        ),
        Word("landed_if", ("value", "there"), "as `landed`, where `there` is not 0", nvidia=True),
        Word("landed", ("value",), "`value`, behind the landing of TMA stores and a barrier", nvidia=True),
        Word("raise_flag", ("flag", "value"), "all stores of the program, then a release of `value` at system scope"),
        Word(
            "raise_flags",
            ("flags", "there", "value"),
            "as `raise_flag`, of all flags of a block that are `there`, at once",
        ),
        Word("rank", ("h",), "this rank (int32)", rule="a load: kernels are not specialised to a rank"),
        Word("num_ranks", ("h",), "the number of ranks (int32)", rule="a load"),
        Word(
            "symm_at",
            ("h", "pointer", "peer"),
            "the place in the peer's tensor that `pointer` has in this rank's",
            rule="addresses alone: stores there are behind no signal until `notify`, loads before none unless `after` a wait",
        ),
        Word(
            "wait",
            ("h", "slot", "value"),
            "waits until this rank's signal is at least `value`; the value seen (int64)",
            rule="polls by an acquire at system scope; loads behind it need `after` or `after_async`",
        ),
        Word(
            "notify",
            ("h", "slot", "peer", "value", "op"),
            'raises the peer\'s signal to `value` (`op="set"`, as if left out) or by it (`"add"`)',
            rule="plain stores and atomics of the program, a CTA barrier, then a release at system scope",
        ),
        Word(
            "notify_async",
            ("h", "slot", "peer", "value", "op"),
            "as `notify`, behind stores through descriptors (TMA) and in loops that are flattened",
            nvidia=True,
            rule="`cp.async.bulk.wait_group 0`, a CTA barrier, then a release at system scope",
        ),
        Word(
            "put",
            ("h", "pointer", "value", "peer", "slot", "signal", "op", "mask"),
            "stores a block in the peer's tensor, then raises its signal",
            rule="as `notify`",
        ),
        Word(
            "get",
            ("h", "pointer", "peer", "slot", "signal", "mask", "other"),
            "waits for this rank's signal, then loads a block of the peer's tensor",
            rule="as `wait` and `after`",
        ),
    )
}


def table() -> str:
    """The words that kernels of users may call, as a Markdown table."""
    rows = ["| word | what it does | what of the memory model it obeys |", "|---|---|---|"]
    for word in WORDS.values():
        if word.public:
            rows.append(f"| `{word.call}`{' (sm_90)' if word.nvidia else ''} | {word.summary} | {word.rule} |")
    return "\n".join(rows) + "\n"
