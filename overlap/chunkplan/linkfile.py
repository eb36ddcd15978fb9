"""A link table from text, in the language of plan files.

    world: 8                                   # or `mesh: {node: 2, gpu: 4}`, whose axes and functions may be used
    classes:                                   # besides nvlink, pcie and network, which are known
      slow: {latency_us: 30, gb_per_s: 12.5, pointer: no}
    pairs:                                     # later entries win
      - {for: a in range(world) for b in range(a), between: [a, b], link: slow}
      - {for: a in range(world - 1), from: a, to: a + 1, link: nvlink}
      - {between: [0, 3], link: none}          # not joined
    switched: [slow]                           # classes whose links share one port a rank; others have wires a pair

`between` joins two ranks both ways, `from` and `to` one way. A pair that no entry names is not joined.
"""

from __future__ import annotations

import math

from .document import Document, Node
from .expand import Env, loop_steps
from .expr import IntExpr, size_key
from .frame import FRAME_KEYS, FrameReader
from .links import KNOWN_LINKS, Link, Links, Pair
from .mesh import Mesh
from .meshkey import read_mesh

_KEYS = ("world", "mesh", "classes", "pairs", "switched")
_CLASS_KEYS = ("latency_us", "gb_per_s", "pointer")
_TRUTH = {"yes": True, "true": True, "no": False, "false": False}
NONE = "none"


def read_links(text: str, path: str = "links.yaml") -> Links:
    """The link table in ``text``; `path` is shown in errors.

    Raises:
        PlanError: with line, column and what to write instead.
    """
    return _Reader(Document(text, path)).links()


class _Reader(FrameReader):
    def links(self) -> Links:
        document = self.document
        entries = document.mapping(document.root, "a link table", _KEYS)
        named, mesh = read_mesh(document, entries.get("mesh"))
        world = self._world(entries.get("world"), entries.get("mesh"), mesh)
        env: Env = {"world": world}
        for place, name in named:
            # An axis has a size and no coordinate: no rank is "this rank" here.
            self.new_name(place, name)
        self.document.names.axes = tuple(name for _, name in named)
        if mesh is not None:
            env.update((size_key(name), size) for name, size in zip(mesh.names, mesh.sizes, strict=True))
        self.classes: dict[str, Link | None] = {**KNOWN_LINKS, NONE: None}
        if "classes" in entries:
            for name, (key, value) in document.entries(entries["classes"], "`classes`").items():
                self.classes[name] = self._link(key, name, value)
        found: dict[Pair, Link] = {}
        pairs = document.require(document.root, entries, "pairs", "a link table", "[{between: [0, 1], link: nvlink}]")
        for node in document.sequence(pairs, "`pairs`"):
            self._pair(node, env, found)
        switched = []
        if "switched" in entries:
            used = {link.name for link in found.values()}
            for node in document.sequence(entries["switched"], "`switched`"):
                switched.append(document.choice(node, "link class of `pairs`", sorted(used)))
        return Links(world, found, tuple(dict.fromkeys(switched)))

    def _world(self, node: Node | None, mesh_node: Node | None, mesh: Mesh | None) -> int:
        document = self.document
        if mesh_node is not None and mesh is None:
            raise document.error(
                mesh_node, "axes without sizes", help="write `mesh: {node: 2, gpu: 4}`, or `mesh: 2x4`"
            )
        if node is None:
            if mesh is None:
                raise document.error(document.root, "a link table needs `world`", help="add `world: 8`, or `mesh: 2x4`")
            return mesh.world
        text = document.scalar(node, "`world`")
        if not (text.isascii() and text.isdigit() and len(text) < 7 and int(text) > 0):
            raise document.error(node, f"`world` is {text}", help="write an integer from 1 on")
        if mesh is not None and mesh.world != int(text):
            raise document.error(
                node, f"`world` is {text}, and `mesh` has {mesh.world} ranks", help="leave `world` out"
            )
        return int(text)

    def _link(self, key: Node, name: str, node: Node) -> Link:
        document = self.document
        what = f"link class `{name}`"
        if name == NONE:
            raise document.error(key, "`none` means no link", help="choose another name")
        entries = document.mapping(node, what, _CLASS_KEYS)
        numbers = []
        for field, example, least in (("latency_us", "10", 0.0), ("gb_per_s", "50", math.ulp(0.0))):
            place = document.require(node, entries, field, what, example)
            text = document.scalar(place, f"`{field}`")
            try:
                number = float(text)
            except ValueError:
                number = math.nan
            if not least <= number < math.inf:
                raise document.error(place, f"`{field}` of {what} is {text}", help=f"write a number, such as {example}")
            numbers.append(number)
        pointer = document.choice(
            document.require(node, entries, "pointer", what, "yes"), f"value of `pointer` of {what}", _TRUTH
        )
        return Link(name, numbers[0] / 1e6, numbers[1] * 1e9, _TRUTH[pointer])

    def _pair(self, node: Node, env: Env, found: dict[Pair, Link]) -> None:
        document = self.document
        what = "an entry of `pairs`"
        entries = document.mapping(node, what, ("between", "from", "to", "link", *FRAME_KEYS))
        loops, lets, when, scope = self.frame(entries, frozenset(("world",)))
        ends: list[IntExpr] = []
        if "between" in entries:
            for extra in ("from", "to"):
                if extra in entries:
                    raise document.error(
                        entries[extra], f"`{extra}` beside `between`", help="keep one of the two forms"
                    )
            ends = [self.rank_of(rank, "a rank", scope) for rank in document.sequence(entries["between"], "`between`")]
            if len(ends) != 2:
                raise document.error(entries["between"], f"a link between {len(ends)} ranks", help="write `[0, 1]`")
        else:
            for key in ("from", "to"):
                ends.append(self.rank_of(document.require(node, entries, key, what, "0"), f"`{key}`", scope))
        link_node = document.require(node, entries, "link", what, "nvlink")
        link = self.classes[document.choice(link_node, "link class", self.classes)]
        for _, inner in loop_steps(loops, env, ()):
            for name, value in lets:
                inner[name] = value(inner)
            if when is not None and not when(inner):
                continue
            a, b = (self._rank(end, inner) for end in ends)
            if a == b:
                raise ends[1].error(f"rank {a} joined to itself", "leave it out with `if`, as in `for b in range(a)`")
            for pair in [(a, b), (b, a)] if "between" in entries else [(a, b)]:
                if link is None:
                    found.pop(pair, None)
                else:
                    found[pair] = link

    def _rank(self, expr: IntExpr, env: Env) -> int:
        rank = expr(env)
        if not 0 <= rank < env["world"]:
            raise expr.error(f"there is no rank {rank}", f"global ranks are 0 to {env['world'] - 1}")
        return rank
