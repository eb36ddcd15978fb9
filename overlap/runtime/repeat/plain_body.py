"""Host functions that do nothing but allocate, compute with sizes and launch: a call like an earlier one needs only the launch.

A host function is the user's, and may do whatever it likes. It is read once, and is plain where every statement and expression
is of a kind that is known to leave nothing behind and to depend on nothing but the arguments, and the values of globals
that are numbers, words or dtypes. A tensor may be asked for its layout, viewed, passed to the launch and returned; whatever
could turn its data into a number is not plain. What is not known is not plain: its calls run it.
"""

from __future__ import annotations

import ast
import builtins
import linecache
from collections.abc import Callable, Collection
from types import CodeType, FunctionType, ModuleType
from typing import Any

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

DTYPES = (torch.dtype, tl.dtype)
VALUES = frozenset((int, float, bool, str, type(None), *DTYPES))
"""Types whose values a call is known by."""
_OF_SIZES = frozenset(
    (
        *(torch.device, torch.cuda.get_device_properties, triton.cdiv, triton.next_power_of_2),
        *(abs, bool, float, int, len, list, max, min, str, tuple),
    )
)
"""Functions that give the same for the same, and leave nothing behind that a later call would miss."""
_DESCRIPTORS = (TensorDescriptor, TensorDescriptor.from_tensor)
_SIZES = frozenset(("stride", "size", "dim", "numel", "element_size", "is_contiguous"))
_VIEWS = frozenset(("contiguous", "view", "t", "transpose", "new_empty"))
"""Methods of tensors. A copy lies in no tensor of a call, so a launch that is passed one is never made ready (`repeat`)."""
_DATA = frozenset(("shape", "dtype", "device", "ndim", "is_cuda", "itemsize", "multi_processor_count", "type", "index"))
_STATEMENTS = (ast.AnnAssign, ast.AugAssign, ast.Assert, ast.If, ast.Pass)
_EXPRESSIONS = (
    *(
        ast.Tuple,
        ast.List,
        ast.Dict,
        ast.BinOp,
        ast.UnaryOp,
        ast.BoolOp,
        ast.Compare,
        ast.IfExp,
        ast.Subscript,
        ast.Slice,
    ),
    *(ast.Constant, ast.JoinedStr, ast.FormattedValue),
)
_PARTS = (ast.operator, ast.unaryop, ast.boolop, ast.cmpop, ast.expr_context, ast.keyword)
_UNKNOWN: Any = object()


def plain_globals(body: Callable[..., Any], tensors: Collection[str]) -> tuple[str, ...] | None:
    """Of a plain host body, the globals whose values its launch depends on; else None.

    Args:
        body: its first parameter is the call that it launches through.
        tensors: its parameters that are tensors.
    """
    if not isinstance(body, FunctionType) or body.__closure__ or hasattr(body, "__wrapped__"):
        return None
    found = _source_of(body.__code__)
    if found is None or found.decorator_list or not found.args.args:
        return None
    reader = _Reader(body, found, tensors)
    return tuple(sorted(reader.values)) if all(map(reader.statement, found.body)) else None


def _source_of(code: CodeType) -> ast.FunctionDef | None:
    """What a function of a module says; None where that is not to be found, or the file says something else by now."""
    linecache.checkcache(code.co_filename)
    text = "".join(linecache.getlines(code.co_filename))
    try:
        tree = ast.parse(text)
        made = compile(text, code.co_filename, "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return None
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.lineno == code.co_firstlineno]
    return functions[0] if functions and any(_same(each, code) for each in made.co_consts) else None


def _same(one: Any, other: Any) -> bool:
    """Whether two constants are the same; of code, whether it does the same."""
    if not isinstance(one, CodeType):
        return type(one) is type(other) and repr(one) == repr(other)
    return (
        isinstance(other, CodeType)
        and (one.co_code, one.co_names, one.co_varnames) == (other.co_code, other.co_names, other.co_varnames)
        and len(one.co_consts) == len(other.co_consts)
        and all(map(_same, one.co_consts, other.co_consts))
    )


class _Reader:
    def __init__(self, body: FunctionType, found: ast.FunctionDef, tensors: Collection[str]) -> None:
        self.values: set[str] = set()
        self._globals = body.__globals__
        self._call = found.args.args[0].arg
        nodes = list(ast.walk(found))
        self._local = {n.id for n in nodes if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)}
        self._local |= {n.arg for n in nodes if isinstance(n, ast.arg)} - {self._call}
        self._local |= {n.name for n in nodes if isinstance(n, ast.FunctionDef)}
        self._tensors = set(tensors)
        assigned = [n for n in nodes if isinstance(n, ast.Assign)]
        before = -1
        while before != len(self._tensors):
            before = len(self._tensors)
            for each in assigned:
                if self._tensor(each.value):
                    self._tensors |= {t.id for t in each.targets if isinstance(t, ast.Name)}

    def statement(self, node: ast.AST, inner: bool = False) -> bool:
        """Whether a statement is plain, of the function itself or of an ``inner`` one, which gives no tensor."""
        match node:
            case ast.Raise():
                return True  # a call that is repeated did not come here
            case ast.FunctionDef(args=args, body=body):
                return (
                    not node.decorator_list
                    and self._defaults(args)
                    and all(self.statement(each, True) for each in body)
                )
            case ast.Expr(value=value):
                return isinstance(value, ast.Constant) or self._launch(value) or self._plain(value)
            case ast.Return(value=value):
                given = value.elts if isinstance(value, ast.Tuple) else [] if value is None else [value]
                return all(map(self._plain if inner else self._either, given))
            case ast.Assign(targets=targets, value=value):
                if self._tensor(value):
                    return all(isinstance(target, ast.Name) for target in targets)
                return all(map(self._target, targets)) and self._plain(value)
            case ast.AnnAssign(target=target) | ast.AugAssign(target=target) if not self._target(target):
                return False
        skipped = (node.annotation, node.target) if isinstance(node, ast.AnnAssign) else ()
        return isinstance(node, _STATEMENTS) and all(
            self.statement(child, inner) if isinstance(child, ast.stmt) else self._plain(child)
            for child in ast.iter_child_nodes(node)
            if child not in skipped
        )

    def _target(self, node: ast.AST) -> bool:
        """Whether what is assigned to is names of what is no tensor."""
        if isinstance(node, ast.Tuple | ast.List):
            return all(map(self._target, node.elts))
        return isinstance(node, ast.Name) and node.id not in self._tensors

    def _launch(self, node: ast.AST) -> bool:
        """``call.kernel(name)[grid](...)``."""
        match node:
            case ast.Call(
                func=ast.Subscript(
                    value=ast.Call(
                        func=ast.Attribute(value=ast.Name(id=self._call), attr="kernel"),
                        args=[ast.Name()],
                        keywords=[],
                    ),
                    slice=grid,
                ),
                args=args,
                keywords=keywords,
            ):
                return self._plain(grid) and all(map(self._either, (*args, *(k.value for k in keywords))))
        return False

    def _either(self, node: ast.AST) -> bool:
        return self._tensor(node) or self._plain(node)

    def _tensor(self, node: ast.AST) -> bool:
        """Whether an expression is a tensor, or a descriptor of one, that comes about in a plain way."""
        match node:
            case ast.Name(id=name):
                return name in self._tensors
            case ast.Attribute(value=value, attr="T"):
                return self._tensor(value)
            case ast.Call(func=function, args=args, keywords=keywords):
                known = self._known(function)
                names = {k.arg for k in keywords}
                if not all(map(self._plain, keywords)) or "out" in names:
                    return False
                if known is torch.empty:
                    # Without these it would be what torch has for default at the time.
                    return {"device", "dtype"} <= names and all(map(self._plain, args))
                if known is torch.empty_like or known in _DESCRIPTORS:
                    return bool(args) and self._tensor(args[0]) and all(map(self._plain, args[1:]))
                if isinstance(function, ast.Attribute) and function.attr in _VIEWS:
                    return self._tensor(function.value) and all(map(self._plain, args))
        return False

    def _plain(self, node: ast.AST) -> bool:
        """Whether an expression is plain, and no tensor."""
        match node:
            case ast.Name(id=name):
                return name not in self._tensors and (name in self._local or self._global(node))
            case ast.Attribute(value=value, attr=attr):
                known = self._known(node)
                return type(known) in DTYPES if known is not _UNKNOWN else attr in _DATA and self._either(value)
            case ast.Compare(left=left, ops=[ast.Is() | ast.IsNot()], comparators=[ast.Constant(value=None)]):
                return self._either(left)
            case ast.Lambda(args=args, body=body):
                return self._defaults(args) and self._plain(body)
            case ast.Call(func=function, args=[ast.Lambda(args=args, body=body)], keywords=[]) if (
                self._known(function) is triton.set_allocator
            ):
                return self._defaults(args) and self._tensor(body)
            case ast.Call(func=function, args=args, keywords=keywords):
                if not all(map(self._plain, (*args, *keywords))):
                    return False
                known = self._known(function)
                if known is not _UNKNOWN:
                    return any(known is each for each in _OF_SIZES)
                if isinstance(function, ast.Name):
                    return function.id in self._local and function.id not in self._tensors
                return isinstance(function, ast.Attribute) and function.attr in _SIZES and self._either(function.value)
        return isinstance(node, (*_EXPRESSIONS, *_PARTS)) and all(map(self._plain, ast.iter_child_nodes(node)))

    def _defaults(self, args: ast.arguments) -> bool:
        return all(map(self._plain, (*args.defaults, *(d for d in args.kw_defaults if d is not None))))

    def _global(self, node: ast.Name) -> bool:
        if type(self._known(node)) not in VALUES:
            return False
        self.values.add(node.id)
        return True

    def _known(self, node: ast.AST) -> Any:
        """What the name of a global stands for, or an attribute of torch, Triton or a descriptor's class."""
        if isinstance(node, ast.Name) and node.id not in self._local and node.id != self._call:
            return self._globals.get(node.id, getattr(builtins, node.id, _UNKNOWN))
        if isinstance(node, ast.Attribute):
            owner = self._known(node.value)
            ours = isinstance(owner, ModuleType) and owner.__name__.partition(".")[0] in ("torch", "triton")
            if ours or owner is TensorDescriptor:
                return getattr(owner, node.attr, _UNKNOWN)
        return _UNKNOWN
