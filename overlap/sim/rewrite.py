"""From a kernel's source to the Python function that the simulator calls.

Assignments become tensors as in Triton's compiler, ``and``/``or``/``not`` and chained comparisons work on blocks, and
in loops that wait for flags the wait of the next iteration can be run ahead of this iteration's stores: that is the
order in which flattened loops execute on GPUs. The wait is run again in its own iteration, on what it saw; a head that moves
chunks is run once, and its iteration takes over the variables that it made.
"""

from __future__ import annotations

import ast
import copy
import textwrap
from collections.abc import Callable
from types import CodeType
from typing import Any

WAIT_WORDS = frozenset({"wait", "wait_run", "get", "look", "poll"})
STORE_WORDS = frozenset(
    {
        "store",
        "notify",
        "notify_async",
        "put",
        "produced",
        "produced_async",
        "produced_once",
        "pushed",
        "raise_flag",
        "raise_flags",
        "atomic_xchg",
        "atomic_store",
        "scatter",
    }
)

MOVE_WORDS = frozenset({"move_some", "move_some_async", "move_some_boxes"})


def compile_function(fn: Callable[..., Any], lines: list[str], first_line: int) -> tuple[CodeType, list[CodeType]]:
    """The module code that defines the rewritten function, and the code of its loops' heads.

    Args:
        fn: the undecorated function.
        lines: its source lines, decorators included.
        first_line: the number of the first of them in its file.
    """
    tree = ast.parse(textwrap.dedent("".join(lines)))
    definition = tree.body[0]
    assert isinstance(definition, ast.FunctionDef)
    definition.decorator_list = []
    definition.returns = None
    arguments = definition.args
    for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
        argument.annotation = None
    arguments.defaults = [ast.Constant(None) for _ in arguments.defaults]
    arguments.kw_defaults = [default and ast.Constant(None) for default in arguments.kw_defaults]
    rewriter = _Rewriter()
    tree = rewriter.visit(tree)
    ast.fix_missing_locations(tree)
    ast.increment_lineno(tree, first_line - 1)
    path = fn.__code__.co_filename
    heads = []
    for head in rewriter.heads:
        module = ast.Module(head, [])
        ast.fix_missing_locations(module)
        heads.append(compile(module, path, "exec"))
    return compile(tree, path, "exec"), heads


def _calls(node: ast.AST, names: frozenset[str]) -> bool:
    for inner in ast.walk(node):
        if isinstance(inner, ast.Call):
            name = inner.func.attr if isinstance(inner.func, ast.Attribute) else getattr(inner.func, "id", "")
            if name in names:
                return True
    return False


def _waits(node: ast.AST) -> bool:
    """A call of a wait word, or a loop around an atomic."""
    if _calls(node, WAIT_WORDS):
        return True
    polls = frozenset({"atomic_add", "atomic_cas", "atomic_or", "atomic_max", "atomic_load", "atomic_poll"})
    return any(isinstance(inner, ast.While) and _calls(inner.test, polls) for inner in ast.walk(node))


def _helper(name: str, *args: ast.expr) -> ast.Call:
    return ast.Call(ast.Name(name, ast.Load()), list(args), [])


def _thunk(body: ast.expr) -> ast.Lambda:
    return ast.Lambda(ast.arguments([], [], None, [], [], None, []), body)


def _once(loop: str, head: list[ast.stmt]) -> ast.stmt:
    """A loop's head, or what it made when it was run ahead."""
    taken = [
        ast.Assign([ast.Name(made, ast.Store())], _method(loop, "taken", ast.Constant(made)))
        for made in _assigned(head)
    ]
    for statement in taken:
        for inner in ast.walk(statement):
            ast.copy_location(inner, head[0])
    return ast.If(ast.copy_location(_method(loop, "fresh"), head[0]), head, [*taken, ast.Pass()])


def _assigned(statements: list[ast.stmt]) -> list[str]:
    """Names that statements assign, in order."""
    names = (
        inner.id
        for statement in statements
        for inner in ast.walk(statement)
        if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store)
    )
    return list(dict.fromkeys(names))


def _method(of: str, name: str, *args: ast.expr) -> ast.Call:
    return ast.Call(ast.Attribute(ast.Name(of, ast.Load()), name, ast.Load()), list(args), [])


class _Rewriter(ast.NodeTransformer):
    def __init__(self) -> None:
        self.heads: list[list[ast.stmt]] = []

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        self.generic_visit(node)
        node.value = ast.copy_location(_helper("ol_sim_tensor", node.value), node.value)
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        self.generic_visit(node)
        if node.value is None:
            return ast.copy_location(ast.Pass(), node)
        constant = "constexpr" in ast.dump(node.annotation)
        value = node.value if constant else ast.copy_location(_helper("ol_sim_tensor", node.value), node.value)
        return ast.copy_location(ast.Assign([node.target], value), node)

    def visit_NamedExpr(self, node: ast.NamedExpr) -> ast.AST:
        self.generic_visit(node)
        node.value = ast.copy_location(_helper("ol_sim_tensor", node.value), node.value)
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        self.generic_visit(node)
        if any(isinstance(inner, ast.NamedExpr) for inner in ast.walk(node)):
            return node
        name = "ol_sim_and" if isinstance(node.op, ast.And) else "ol_sim_or"
        return ast.copy_location(_helper(name, *[_thunk(value) for value in node.values]), node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.op, ast.Not):
            return ast.copy_location(_helper("ol_sim_not", node.operand), node)
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        if len(node.ops) == 1:
            return node
        operands = [node.left, *node.comparators]
        links = [
            _thunk(ast.Compare(copy.deepcopy(operands[i]), [op], [copy.deepcopy(operands[i + 1])]))
            for i, op in enumerate(node.ops)
        ]
        return ast.copy_location(_helper("ol_sim_and", *links), node)

    def visit_For(self, node: ast.For) -> ast.AST:
        self.generic_visit(node)
        waits = [i for i, statement in enumerate(node.body) if _waits(statement)]
        stores = [
            i for i, statement in enumerate(node.body) if _calls(statement, STORE_WORDS) and not _waits(statement)
        ]
        if not waits or not isinstance(node.target, ast.Name):
            return node
        later = [i for i in stores if i > waits[-1]]
        if not later:
            return node
        name = f"ol_sim_loop{len(self.heads)}"
        head = copy.deepcopy(node.body[: waits[-1] + 1])
        ahead = ast.Expr(
            ast.Call(
                ast.Attribute(ast.Name(name, ast.Load()), "ahead", ast.Load()),
                [
                    ast.Constant(len(self.heads)),
                    ast.Constant(node.target.id),
                    ast.Call(ast.Name("locals", ast.Load()), [], []),
                ],
                [],
            )
        )
        for inner in ast.walk(ahead):
            ast.copy_location(inner, node.body[waits[-1]])
        self.heads.append(head)
        node.body.insert(later[0], ahead)
        if any(_calls(statement, MOVE_WORDS) for statement in head):
            own = node.body[: waits[-1] + 1]
            node.body[: waits[-1] + 1] = [ast.copy_location(_once(name, own), own[0])]
        start = ast.copy_location(
            ast.Assign([ast.Name(name, ast.Store())], _helper("ol_sim_lookahead", node.iter)), node
        )
        node.iter = ast.Name(name, ast.Load())
        wrapper = ast.If(ast.Constant(True), [start, node], [])
        return ast.copy_location(wrapper, node)
