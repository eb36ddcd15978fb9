"""One typed registry of settings: a keyword beats the environment, the environment beats the default.

    settings.get("sim_sms")               # OVERLAP_SIM_SMS, else 4
    settings.get("sim_sms", keyword=sms)  # sms, unless it is None

The environment is read at every call, never cached. docs/settings.md is `table()`; a test keeps them equal.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from overlap.errors import UsageError

PREFIX = "OVERLAP_"
_WORDS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


@dataclass(frozen=True)
class Setting:
    """One setting.

    Args:
        name: as in `get` and, upper-cased with `PREFIX`, in the environment.
        kind: ``str``, ``int``, ``float``, ``bool`` or ``Path``.
        default: used when neither keyword nor environment says otherwise.
        doc: one sentence for the table.
        choices: the words allowed, for ``str``.
        minimum: the smallest number allowed.
    """

    name: str
    kind: type[Any]
    default: Any
    doc: str
    choices: tuple[str, ...] = ()
    minimum: float | None = None

    @property
    def variable(self) -> str:
        return PREFIX + self.name.upper()

    @property
    def allowed(self) -> str:
        """What a value may be, in words."""
        if self.choices:
            return " or ".join(", ".join(self.choices).rsplit(", ", 1))
        words = {bool: "1 or 0", Path: "a path", str: "text", int: "an integer", float: "a number"}[self.kind]
        return words if self.minimum is None else f"{words}, at least {self.minimum:g}"

    def parse(self, text: str) -> Any:
        """The value of ``text``.

        Raises:
            ValueError: ``text`` is no allowed value.
        """
        if self.kind is bool:
            if text.lower() not in _WORDS:
                raise ValueError(text)
            return _WORDS[text.lower()]
        return self.check(self.kind(text))

    def check(self, value: Any) -> Any:
        """``value``, of this setting's kind.

        Raises:
            ValueError: the value is of another type, out of range or not one of the choices.
        """
        if self.kind is Path and isinstance(value, str):
            value = Path(value)
        if self.kind is float and type(value) is int:
            value = float(value)
        if type(value) is bool and self.kind is not bool or not isinstance(value, self.kind):
            raise ValueError(value)
        if self.choices and value not in self.choices:
            raise ValueError(value)
        if self.minimum is not None and not value >= self.minimum:  # written so that NaN fails too
            raise ValueError(value)
        return value


SETTINGS: dict[str, Setting] = {
    setting.name: setting
    for setting in (
        Setting("dump_dir", Path, None, "Folder that receives each stage's result as a text file; unset: none."),
        Setting(
            "deadline_s",
            float,
            30.0,
            "Seconds a wait may last before every rank raises, naming what it waited for; 0: for ever.",
            minimum=0,
        ),
        Setting(
            "compile_deadline_s",
            float,
            300.0,
            "Seconds a rank may compile kernels in a first call before the others raise; 0: for ever.",
            minimum=0,
        ),
        Setting(
            "machine",
            str,
            None,
            "Machine by name, or a .yaml file, whose times decide in which order chunks are used; unset: nodes of 8 x H100.",
        ),
        Setting(
            "provider",
            str,
            "auto",
            "Where symmetric memory comes from; auto: torch's, or NVSHMEM where torch has none.",
            choices=("auto", "torch", "nvshmem"),
        ),
        Setting(
            "node_ranks",
            int,
            None,
            "Ranks of a node: ranks of other nodes are reached by no pointer, only through NVSHMEM; unset: a host is a node.",
            minimum=1,
        ),
        Setting(
            "cache_dir",
            Path,
            None,
            "Folder of modules made by `overlap.compile`, and of device code; unset: in the user's cache folder.",
        ),
        Setting(
            "lock",
            Path,
            None,
            "File of pinned realizations; unset: the first `overlap.lock` in the working directory and above.",
        ),
        Setting(
            "tuned",
            bool,
            True,
            "Whether calls that name neither backend nor split take what is pinned, tuned or shipped for their problem.",
        ),
        Setting(
            "serial_below_bytes",
            int,
            12 << 20,
            "Communicated tensors smaller than this, and all-reduced ones than twice this, go through a plain collective, which "
            "is faster then.",
            minimum=0,
        ),
        Setting(
            "low_latency_below_bytes",
            int,
            24 << 20,
            "Plain collectives go by words or blocks of our own where a rank gets fewer bytes than this by them; 0: never.",
            minimum=0,
        ),
        Setting(
            "low_latency_blocks_from_bytes",
            int,
            512 << 10,
            "Of those, the ones by which a rank gets as many bytes as this in a step (all-reduces have one or two) go as dense "
            "blocks with a flag behind each, smaller ones as words, half of which is flag; 0: always blocks.",
            minimum=0,
        ),
        Setting(
            "launch_early",
            bool,
            False,
            "Words and blocks are launched while what is ahead of them on the stream still ends (sm_90 and later).",
        ),
        Setting(
            "strided_row_bytes",
            int,
            128,
            "Strided chunks with narrower rows go by a realization's `strided` backend, of operators by ld/st.",
            minimum=0,
        ),
        Setting(
            "one_shot_below_bytes",
            int,
            12 << 20,
            "All-reduced results smaller than this travel in one step, larger ones in two.",
            minimum=0,
        ),
        Setting(
            "sum_sms",
            int,
            None,
            "Multiprocessors that kernels leave to sums made while they run; 0: sums follow them; unset: operators decide.",
            minimum=0,
        ),
        Setting(
            "store_sums",
            bool,
            True,
            "Sums that are sent on are stored in peers' memory by the launch that makes them; otherwise copy engines send them "
            "behind it.",
        ),
        Setting(
            "tile_sums",
            bool,
            None,
            "`gemm_rs` by copy engine has the tiles of a rank's own part add what others have sent of it, where they can, in the "
            "place of a sum kernel; unset: on one and two ranks, where what they wait for comes in time.",
        ),
        Setting(
            "tail",
            str,
            "auto",
            "Whether `ag_gemm` and `a2a_gemm` leave the tiles of a last wave that few multiprocessors take part in (always), or "
            "`ag_gemm` those of the chunk that comes last (part), to a launch of smaller ones behind the kernel; auto: where "
            "this is predicted to be shorter.",
            choices=("auto", "always", "part", "never"),
        ),
        Setting(
            "given_bytes",
            int,
            4 << 20,
            "Shards of fewer bytes are staged before copy engines push them; others are pushed out of the caller's tensor, while "
            "they are staged, if they are (`in_place`).",
            minimum=0,
        ),
        Setting(
            "in_place",
            bool,
            True,
            "Tiles read the rank's own chunk of an input where its caller has it, and store what the rank keeps of a result "
            "where it belongs, if they can; otherwise it is copied into symmetric memory first, and out of it.",
        ),
        Setting(
            "lane_graphs",
            bool,
            False,
            "Copies and flags of launches that repeat an earlier one are enqueued as a CUDA graph of the library's own.",
        ),
        Setting(
            "call_graphs",
            int,
            16,
            "The repetition of a call that makes it a CUDA graph of the library's own, which is launched with the addresses of "
            "each later call; 0: none does.",
            minimum=0,
        ),
        Setting(
            "trace",
            bool,
            False,
            "Fused kernels record when their tiles wait, begin and end, for `overlap trace`; it costs them a little.",
        ),
        Setting(
            "log_level",
            str,
            "warning",
            "What the `overlap` logger lets through; info: one line for every operator and shape.",
            choices=("debug", "info", "warning", "error"),
        ),
        Setting("sim_sms", int, 4, "Multiprocessors of a simulated rank: as many programs run at a time.", minimum=1),
    )
}


def get(name: str, keyword: Any = None) -> Any:
    """The value of a setting.

    Args:
        name: a key of `SETTINGS`.
        keyword: what the caller was given; None means nothing, so that the environment or the default decides.

    Raises:
        UsageError: no such setting, or a value that is not allowed; names the keyword or the variable.
    """
    setting = SETTINGS.get(name)
    if setting is None:
        near = get_close_matches(name, SETTINGS, n=1)
        known = "settings: " + ", ".join(SETTINGS)
        raise UsageError(f"no setting {name!r}", help=f"did you mean {near[0]!r}? {known}" if near else known)
    if keyword is not None:
        try:
            return setting.check(keyword)
        except ValueError:
            raise UsageError(f"{name}={keyword!r} is not allowed", help=f"{name} is {setting.allowed}") from None
    text = os.environ.get(setting.variable, "").strip()
    if not text:
        return setting.default
    try:
        return setting.parse(text)
    except ValueError:
        raise UsageError(
            f"{setting.variable}={text!r} is not allowed", help=f"{setting.variable} is {setting.allowed}"
        ) from None


_VARIABLES = tuple(setting.variable for setting in SETTINGS.values())
_KEYS = tuple(map(os.fsencode, _VARIABLES))


def texts() -> tuple[Any, ...]:
    """What the environment says of every setting, unparsed: equal to what it gave before if nothing has changed.

    For calls of a few microseconds: `os.environ` takes one alone to say that it has not got something, its dictionary
    says so at once.
    """
    words = getattr(os.environ, "_data", None)
    if words is None or os.name != "posix":
        return tuple(map(os.environ.get, _VARIABLES))
    return tuple(map(words.get, _KEYS))


def table() -> str:
    """The settings as a Markdown table."""
    rows = ["| setting | variable | value | default | what it does |", "|---|---|---|---|---|"]
    for setting in SETTINGS.values():
        default = {None: "unset", True: "1", False: "0"}.get(setting.default, setting.default)
        rows.append(f"| `{setting.name}` | `{setting.variable}` | {setting.allowed} | {default} | {setting.doc} |")
    return "\n".join(rows) + "\n"
