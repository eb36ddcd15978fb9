"""`Backend`: what a way of moving chunks can do. `Realization`: the pasteable, hashable choice of one.

Backends never name an operator, and operators never name a backend: a plan's operations meet a
backend only here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from overlap.chunkplan.cuts import Split, parts_in, split_of
from overlap.chunkplan.document import close_to
from overlap.errors import PlanError, UsageError


@dataclass(frozen=True)
class Backend:
    """One way to move a chunk.

    ``default_direction``: what ``all_gather_1d`` becomes. ``ordered``: flags of one channel are raised in list order, so a
    later flag implies an earlier one. ``writer`` names the row of `memory_rules.WRITERS` its flags obey. ``moves``: what it
    can move, ``input``, what a kernel reads, and ``result``, what one makes. ``inline``: programs that compute move chunks too,
    of a result the tile just made, of an input a part between two tiles. ``reserved``: programs of the launch that compute
    nothing move chunks. ``reduce``: adds where chunks arrive; others leave sums to a kernel behind. ``far``: reaches peers that
    no pointer reaches. ``triton``: the oldest that it runs on.
    """

    name: str
    default_direction: str
    directions: tuple[str, ...]
    ordered: bool
    strided: bool
    reduce: bool
    comm_sms: bool
    writer: str
    moves: tuple[str, ...] = ("input", "result")
    inline: bool = False
    reserved: bool = False
    far: bool = False
    triton: tuple[int, int] = (3, 6)

    @property
    def words(self) -> bool:
        """Whether data and flag travel in one word: nothing is copied, counted or flagged."""
        return self.writer == "packet"

    @property
    def compute_capability(self) -> tuple[int, int] | None:
        """The oldest NVIDIA device that it runs on, as (major, minor); None: any."""
        return (9, 0) if self.writer == "tma store" else None


@dataclass(frozen=True)
class Realization:
    """How a plan is carried out: tunable, printable, and valid Python when printed.

    ``split``: how a shard is cut into chunks: a number of them, or weights (`overlap.chunkplan.cuts`). ``comm_sms``:
    multiprocessors reserved for moving data (0: the backend's own choice, an eighth of the device's where it takes any).
    ``num_warps`` / ``num_stages``: override the kernel launch's own. ``meta``: overrides of constexpr arguments, such as block
    sizes, as (name, value) pairs. ``machine``: whose times decide in which order chunks are used, by name or .yaml file; the
    setting ``machine`` where it is None. ``strided``: the backend of strided chunks with rows of fewer bytes than the setting
    ``strided_row_bytes``, where ``backend`` is the copy engine; empty: as all others. ``sum_sms``: multiprocessors that a kernel
    leaves free for sums of its results that are made while it runs; 0: sums follow the kernel; None: as the setting ``sum_sms``
    or a prebuilt operator says. ``tile_sums``: 1 has the tiles of the part of a reduce-scattered result that the rank
    keeps add what others have sent of it, in place of a sum kernel behind all tiles; None: as 0, and of a prebuilt operator as
    the setting ``tile_sums`` says, where the shape allows it.
    ``trace``: 1 has the kernel record when its tiles wait, begin and end (`overlap trace`); nothing else of it changes.
    """

    backend: str = "copy_engine"
    split: Split = 1
    comm_sms: int = 0
    num_warps: int | None = None
    num_stages: int | None = None
    meta: tuple[tuple[str, int], ...] = ()
    machine: str | None = None
    strided: str = ""
    sum_sms: int | None = None
    tile_sums: int | None = None
    trace: int = 0

    def __repr__(self) -> str:
        shown = [f"backend={self.backend!r}"]
        shown += [
            f"{k}={getattr(self, k)!r}"
            for k, field in type(self).__dataclass_fields__.items()
            if k != "backend" and getattr(self, k) != field.default
        ]
        return f"Realization({', '.join(shown)})"

    def with_settings(self, settings: dict[str, str], constexprs: tuple[str, ...]) -> Realization:
        """The same with ``key=value`` settings of the command line applied.

        ``constexprs`` are the kernel's constexpr parameters, which may be set like keys of this class.

        Raises:
            UsageError: an unknown key (the nearest valid one is named) or a value of the wrong kind.
        """
        result = self
        for key, text in settings.items():
            number = _integer(key, text) if key not in ("backend", "machine", "strided", "split") else None
            if key == "split":
                result = replace(result, split=_split(text))
            elif key == "backend":
                result = replace(result, backend=text)
            elif key == "machine":
                result = replace(result, machine=text)
            elif key == "strided":
                result = replace(result, strided=text)
            elif key == "meta":
                raise UsageError("set constexpr arguments by their own names", help="--set BLOCK_M=64")
            elif key in type(self).__dataclass_fields__:
                low = 0 if key in ("comm_sms", "sum_sms", "tile_sums", "trace") else 1
                if number is None or number < low:
                    raise UsageError(f"{key} must be an integer of at least {low}, not {text!r}")
                if key in ("tile_sums", "trace") and number > 1:
                    raise UsageError(f"{key} must be 1 or 0, not {text!r}")
                if key == "num_warps" and number & (number - 1):
                    raise UsageError(f"num_warps must be a power of two, not {text!r}", help="--set num_warps=4")
                result = replace(result, **{key: number})  # type: ignore[arg-type]
            elif key in constexprs:
                assert number is not None
                kept = tuple(pair for pair in result.meta if pair[0] != key)
                result = replace(result, meta=(*kept, (key, number)))
            else:
                valid = [k for k in type(self).__dataclass_fields__ if k != "meta"] + list(constexprs)
                near = close_to(key, valid)
                raise UsageError(
                    f"unknown setting {key!r}",
                    help=(f"did you mean {near[0]!r}? " if near else "") + "settings: " + ", ".join(valid),
                )
        return result


MOST_PARTS = 1024
"""Parts of a transfer of a kernel; a plan is proven operation by operation, and more take minutes."""


def _split(text: str) -> Split:
    if text.strip().lstrip("-").isdecimal() and int(text) < 1:
        raise UsageError(f"split must be an integer of at least 1, or weights, not {text!r}", help="--set split=2")
    try:
        split = split_of(text)
        if parts_in(split) > MOST_PARTS:
            raise UsageError(
                f"split={text}: a transfer is cut into {MOST_PARTS} parts at most",
                help="each costs a copy and a flag: 2 to 8 parts are what pays",
            )
        return split
    except PlanError as error:
        raise UsageError(f"split must be an integer or weights, not {text!r}", help=error.help) from None


def _integer(key: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        shown = {"trace": 1, "tile_sums": 1, "num_warps": 4}.get(key, 64 if key.startswith("BLOCK") else 2)
        raise UsageError(f"{key} must be an integer, not {text!r}", help=f"--set {key}={shown}") from None
