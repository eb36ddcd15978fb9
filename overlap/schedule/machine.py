"""A machine by name or file: how fast ranks reach each other, how fast they compute, what starting things costs.

    load_machine("h100-nvlink-ib400")   ->  Machine: nodes of 8, NVLink inside, 400 Gb/s a rank between them

A machine file is a few lines of YAML, and each of its numbers has its source in a comment beside it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from yaml import Node

from overlap import settings
from overlap.chunkplan.document import Document, nearest
from overlap.chunkplan.links import Link, Links, full_mesh, two_level
from overlap.chunkplan.mesh import Mesh
from overlap.errors import PlanError

_PACKAGE = Path(__file__).resolve().parent.parent
PROGRAMS = {
    "pull": "pull by load/store",
    "push": "push by load/store",
    "pull_tma": "pull by TMA",
    "push_tma": "push by TMA",
    "pull_nvshmem": "pull by NVSHMEM",
    "push_nvshmem": "push by NVSHMEM",
}
"""The ways in which programs of a kernel copy over a link, by their keys in a machine file."""
_NUMBER = re.compile(r"[+]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?\Z")


@dataclass(frozen=True)
class Library:
    """How a communication library does a collective over links of one class: the serial alternative.

    ``latency_s`` from call to first byte, and ``bytes_per_s`` that a rank sends, and receives, from then on.
    """

    latency_s: float
    bytes_per_s: float


@dataclass(frozen=True)
class Machine:
    """What the event model knows of a machine. Rates are what a program reaches, not the peak of the data sheet.

    Args:
        node: ranks that ``inside`` joins; rank r stands in node ``r // node``.
        inside, between: links in a node and between nodes (None: one node is all there is).
        library, library_between: collectives of a communication library over them.
        flops: by dtype, floating-point operations a second of all compute units together.
        units: compute units; each holds one tile at a time.
        memory: bytes a second of the rank's own memory.
        entry: seconds from launch until all ranks are ready: copies may start, and the kernel is launched.
        kernel: seconds from there to the first tile.
        contention: seconds that a rank's tiles lose for each second of a copy that lands on it; ``contention_sent``: of one
            that reads, by copy engine, what they have made. What is sent as it was given is in a cache after the first peer.
        flag: seconds from the end of a copy until whoever waits for it knows.
        own_wires: every pair of ranks has wires of its own; otherwise all links of a class that leave a rank share one
            port, and so do those that enter it.
        one_engine: copies and flags of all lanes of a rank go through one copy engine, so that a flag holds up the next copy of
            any lane, where otherwise it holds up that of its own.
        programs: by way (`PROGRAMS`), bytes a second of a copy over ``inside`` by how many programs copy; empty where
            nobody measured it.
    """

    name: str
    node: int
    inside: Link
    between: Link | None
    library: Library
    library_between: Library | None
    flops: Mapping[str, float] = field(hash=False)
    units: int
    memory: float
    kernel: float
    entry: float
    flag: float
    contention: float = 0.0
    contention_sent: float = 0.0
    own_wires: bool = False
    one_engine: bool = False
    programs: Mapping[str, Mapping[int, float]] = field(default_factory=dict, hash=False)

    def link(self, source: int, target: int) -> Link | None:
        """The link from one rank to another; None where there is none."""
        if source == target:
            return None
        return self.inside if source // self.node == target // self.node else self.between

    def links(self, world: int) -> Links:
        """The link table of ``world`` ranks, its classes switched unless every pair has wires of its own.

        Raises:
            PlanError: as `check_world`.
        """
        self.check_world(world)
        if self.between is None or world <= self.node:
            whole = full_mesh(world, self.inside)
        else:
            whole = two_level(-(-world // self.node), self.node, self.inside, self.between)
        classes = {pair: link for pair, link in whole.classes.items() if max(pair) < world}
        names = {link.name for link in classes.values()}
        return Links(world, classes, () if self.own_wires else tuple(sorted(names)))

    def check_world(self, world: int) -> None:
        """Raises PlanError unless the machine has that many ranks."""
        if world < 1:
            raise PlanError(f"a world of {world} ranks", help="a world has 1 rank or more")
        if self.between is None and world > self.node:
            raise PlanError(
                f"machine {self.name} is one node of {self.node} ranks, not {world}",
                help="take a machine with a network between its nodes, such as h100-nvlink-ib400",
            )

    def rate(self, dtype: str) -> float:
        """Floating-point operations a second.

        Raises:
            PlanError: the machine file has none for ``dtype``.
        """
        if dtype not in self.flops:
            raise PlanError(f"machine {self.name} has no rate for `{dtype}`", help=nearest(dtype, self.flops))
        return self.flops[dtype]

    def on_mesh(self, mesh: Mesh | None) -> Machine:
        """The same machine with nodes as a mesh has them: of two axes or three, the last is a node.

        A node never has more ranks than the machine's, and one without a network stays one node.
        """
        if mesh is None or len(mesh.sizes) == 1 or self.between is None:
            return self
        return replace(self, node=min(self.node, mesh.sizes[-1]))

    def scaled(self, compute: float = 1.0, links: float = 1.0) -> Machine:
        """The same machine with rates of compute and of links multiplied."""
        between = self.between and replace(self.between, bytes_per_s=self.between.bytes_per_s * links)
        inside = replace(self.inside, bytes_per_s=self.inside.bytes_per_s * links)
        flops = {dtype: rate * compute for dtype, rate in self.flops.items()}
        return replace(self, inside=inside, between=between, flops=flops)

    def with_free(self, units: int) -> Machine:
        """The same machine with so many units that compute nothing."""
        left = max(1, self.units - units)
        return replace(self.scaled(compute=left / self.units), units=left)


def machine_folders() -> tuple[Path, ...]:
    """Where machine files are looked for: inside an installed package, then beside it in a checkout."""
    places = (_PACKAGE / "templates" / "machines", _PACKAGE.parent / "templates" / "machines")
    return tuple(place for place in places if place.is_dir())


def list_machines() -> tuple[str, ...]:
    """The names `load_machine` knows, sorted."""
    return tuple(sorted({path.stem for folder in machine_folders() for path in folder.glob("*.yaml")}))


def load_machine(name: str) -> Machine:
    """A machine by its name, or by the path of a ``.yaml`` file.

    Raises:
        PlanError: there is no such machine (the nearest name is given), or its file is malformed, with line and column.
    """
    if name.endswith((".yaml", ".yml")) or "/" in name or "\\" in name:
        return parse_machine(_read(Path(name), name), name)
    for folder in machine_folders():
        path = folder / f"{name}.yaml"
        if name and path.is_file():
            return parse_machine(_read(path, name), str(path))
    raise PlanError(f"unknown machine `{name}`", help=f"{nearest(name, list_machines())}, or the path of a .yaml file")


def machine_for(world: int, mesh: Mesh | None = None, name: str | None = None, *, stretched: bool = False) -> Machine:
    """The machine that ``world`` ranks are taken to be on: the one named, by ``name`` or the setting ``machine``.

    Unless one is named it is a node of 8 x H100, and of more ranks, or of a mesh of several axes, as many of them as it
    takes. Its nodes are those of the mesh (`Machine.on_mesh`).

    Args:
        stretched: of a single node with fewer ranks, one as large as it takes with the same links: what is looked at is not
            how long something takes there, but whether worlds of every size are right.

    Raises:
        PlanError: as `load_machine` and `Machine.check_world`.
    """
    several = world > 8 or (mesh is not None and len(mesh.sizes) > 1)
    named = settings.get("machine", keyword=name) or ("h100-nvlink-ib400" if several else "h100-nvlink")
    try:
        machine = load_machine(named).on_mesh(mesh)
    except PlanError as error:
        if name is None and error.where is None:
            raise PlanError(f"{error.message} (the setting OVERLAP_MACHINE)", help=error.help) from None
        raise
    if stretched and machine.between is None and world > machine.node:
        machine = replace(machine, node=world)
    machine.check_world(world)
    return machine


def parse_machine(text: str, path: str = "machine.yaml") -> Machine:
    """The machine that a file's text describes.

    Raises:
        PlanError: the text is malformed, with line and column.
    """
    document = Document(text, path)
    return _Reader(document).machine()


def _read(path: Path, name: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise PlanError(f"the machine file {name} is not UTF-8 text", help="save it as UTF-8") from None
    except OSError as error:
        reason = (error.strerror or "cannot be read").lower()
        raise PlanError(
            f"the machine file {name} cannot be read: {reason}",
            help=f"{nearest(name, list_machines())}, or a .yaml file",
        ) from None


class _Reader:
    """Machine files: keys by section, every number above 0 (a latency or cost may be 0)."""

    BOOLS = ("own_wires", "one_engine")
    KEYS = ("machine", "node", "inside", "between", "programs", "compute", "launch", *BOOLS)
    SHARES = ("contention", "contention_sent")
    LINK = ("name", "latency_us", "gb_per_s", "pointer", "library_latency_us", "library_gb_per_s")

    def __init__(self, document: Document) -> None:
        self.document = document

    def machine(self) -> Machine:
        document, what = self.document, "a machine"
        root = document.mapping(document.root, what, self.KEYS)
        name = document.scalar(document.require(document.root, root, "machine", what, "my-box"), "`machine`")
        node = self._number(document.require(document.root, root, "node", what, "8"), "node", whole=True)
        inside, library = self._link(document.require(document.root, root, "inside", what, "{gb_per_s: 377}"), "inside")
        between, library_between = self._link(root["between"], "between") if "between" in root else (None, None)
        compute_node = document.require(document.root, root, "compute", what, "{units: 132}")
        compute = document.mapping(compute_node, "`compute`", ("units", "memory_gb_per_s", "tflops"))
        launch_node = document.require(document.root, root, "launch", what, "{kernel_us: 4}")
        launch = document.mapping(launch_node, "`launch`", ("kernel_us", "entry_us", "flag_us", *self.SHARES))
        rates_node = self._need(compute_node, compute, "tflops", "{bf16: 800}")
        rates = document.mapping(rates_node, "`tflops`")
        flops = {dtype: self._number(value, dtype) * 1e12 for dtype, value in rates.items()}
        shares: dict[str, Any] = {
            key: self._number(launch[key], key, zero=True) for key in self.SHARES if key in launch
        }
        said = {key: document.choice(root[key], key, ("true", "false")) for key in self.BOOLS if key in root}
        flags: dict[str, Any] = {key: value == "true" for key, value in said.items()}
        return Machine(
            name=name,
            node=int(node),
            inside=inside,
            between=between,
            library=library,
            library_between=library_between,
            flops=flops,
            units=int(self._number(self._need(compute_node, compute, "units", "132"), "units", whole=True)),
            memory=self._number(self._need(compute_node, compute, "memory_gb_per_s", "3000"), "memory_gb_per_s") * 1e9,
            kernel=self._cost(launch_node, launch, "kernel_us"),
            entry=self._cost(launch_node, launch, "entry_us"),
            flag=self._cost(launch_node, launch, "flag_us"),
            **flags,
            **shares,
            programs=self._programs(root["programs"]) if "programs" in root else {},
        )

    def _programs(self, node: Node) -> dict[str, dict[int, float]]:
        """``pull: {8: 270, 16: 288}``: by way, GB/s by programs."""
        document = self.document
        found: dict[str, dict[int, float]] = {}
        for way, rates in document.mapping(node, "`programs`", tuple(PROGRAMS)).items():
            found[way] = {}
            for key, (place, value) in document.entries(rates, f"`{way}`").items():
                if not re.fullmatch(r"[1-9][0-9]{0,5}", key):
                    raise document.error(place, f"`{key}` programs", help="write how many copy, such as `16: 288`")
                found[way][int(key)] = self._number(value, key) * 1e9
        return found

    def _link(self, node: Node, name: str) -> tuple[Link, Library]:
        document = self.document
        given = document.mapping(node, f"`{name}`", self.LINK)
        rate = self._number(self._need(node, given, "gb_per_s", "377"), "gb_per_s") * 1e9
        latency = self._cost(node, given, "latency_us")
        pointer = document.choice(given["pointer"], "pointer", ("true", "false")) if "pointer" in given else "true"
        called = document.scalar(given["name"], "`name`") if "name" in given else name
        library = Library(
            self._cost(node, given, "library_latency_us"),
            self._number(self._need(node, given, "library_gb_per_s", "280"), "library_gb_per_s") * 1e9,
        )
        return Link(called, latency, rate, pointer == "true"), library

    def _need(self, node: Node, entries: Mapping[str, Node], key: str, example: str) -> Node:
        return self.document.require(node, entries, key, "this part of a machine", example)

    def _cost(self, node: Node, entries: Mapping[str, Node], key: str) -> float:
        return self._number(self._need(node, entries, key, "4"), key, zero=True) * 1e-6

    def _number(self, node: Node, key: str, *, zero: bool = False, whole: bool = False) -> float:
        text = self.document.scalar(node, f"`{key}`")
        value = float(text) if _NUMBER.match(text) else math.nan
        if not (0 <= value < math.inf) or (value == 0 and not zero) or (whole and value != int(value)):
            kind = "a whole number of 1 or more" if whole else f"a number {'of 0 or more' if zero else 'above 0'}"
            raise self.document.error(node, f"`{key}` is {kind}, not `{text}`", help=f"write {kind}")
        return value
