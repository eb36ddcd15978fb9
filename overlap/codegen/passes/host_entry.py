"""Adds the distributed host function under the user's name: the same parameters, then group, sizes and out."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

import libcst as cst

from overlap.errors import HostEntryError

from ..context import Context
from ..locate import find_function, pragma_of, replaced, statements
from .operator import fitted

ADDED = ("group", "sizes", "out")


def run(module: cst.Module, context: Context) -> cst.Module:
    host, names = context.program.host, context.names
    assert host is not None
    body = find_function(module, names.local(f"body_{host.name}"))
    params = _without_out(_without_call(body.params, names.local("call")))
    _refuse_clashes(params, context)
    keyword = [cst.Param(cst.Name(n), default=cst.Name("None"), equal=_equal(), comma=_comma()) for n in ADDED]
    keyword[-1] = keyword[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
    old_keyword = [p.with_changes(comma=_comma()) for p in params.kwonly_params]
    star = params.star_arg if isinstance(params.star_arg, cst.ParamStar) else cst.ParamStar(comma=_comma())
    params = params.with_changes(
        params=[p.with_changes(comma=_comma()) for p in params.params],
        star_arg=star,
        kwonly_params=[*old_keyword, *keyword],
    )
    given = ", ".join(
        f'"{p.name.value}": {p.name.value}' for p in (*params.posonly_params, *params.params, *old_keyword)
    )
    doc = f'"""{_doc(context)}\n    """'
    call = f"    return {names.operator}.call({{{given}}}, group=group, sizes=sizes, out=out)"
    text = f"def {host.name}():\n    {doc}\n" + "\n".join(fitted(call)) + "\n"
    (function,) = statements(text)
    assert isinstance(function, cst.FunctionDef)
    pragmas = [line for line in (*body.leading_lines, *body.lines_after_decorators) if _is_entry(line)]
    stripped = body.with_changes(
        leading_lines=[line for line in body.leading_lines if not _is_entry(line)],
        lines_after_decorators=[line for line in body.lines_after_decorators if not _is_entry(line)],
    )
    module = replaced(module, body, stripped)
    function = function.with_changes(
        params=params,
        returns=body.returns,
        leading_lines=[cst.EmptyLine(), cst.EmptyLine(), *pragmas],
    )
    return _insert(module, _operator_index(module, names.operator), _one_a_line(function))


def _doc(context: Context) -> str:
    """The docstring: what is passed and returned in which part, and when sizes are needed."""
    host = context.program.host
    assert host is not None
    passed = [
        f"{on.tensor} is passed as its shard along {on.axis}"
        + (f" (the kernel works on the rank's part of {on.to})" if on.to else "")
        for on in context.consumed
    ]
    returned = []
    for on in context.produced:
        if on.kind == "all_to_all":
            returned.append(
                f"{on.tensor} is made for the rank's part of {on.axis} and returned as its shard along {on.to}"
            )
        else:
            shard = f"as its shard along {on.axis}" if on.axis else "whole"
            returned.append(f"{on.tensor} is the sum of the ranks' results, returned {shard}")
    parts = [
        *passed,
        *returned,
        "everything else belongs to the rank" if passed else "everything passed belongs to the rank",
    ]
    between = "; " if returned else ", "
    lines = _wrapped(f"`{host.name}` over the ranks of `group`: {between.join(parts)}.")
    if any(not on.reduces for on in context.ons):
        sizes = "`sizes` maps an axis to its global extent; uneven shards (they follow `torch.chunk`) need it."
    else:
        sizes = "Shards follow `torch.chunk`. `sizes` maps an axis to its extent, which is then checked."
    return "\n".join([*lines, "", f"    {sizes}"])


def _wrapped(text: str, width: int = 120) -> list[str]:
    """Lines of a docstring's first paragraph; the first stands behind the indentation and the quotes."""
    lines = textwrap.wrap(text, width - 4, initial_indent="   ", break_long_words=False, break_on_hyphens=False)
    return [lines[0].lstrip(), *(f"    {line}" for line in lines[1:])]


def _is_entry(line: cst.EmptyLine) -> bool:
    return (pragma_of(line) or ("",))[0] == "host_entry"


def _operator_index(module: cst.Module, name: str) -> int:
    for index, statement in enumerate(module.body):
        if isinstance(statement, cst.SimpleStatementLine) and any(
            isinstance(s, cst.Assign) and getattr(s.targets[0].target, "value", None) == name for s in statement.body
        ):
            return index
    raise AssertionError("the operator pass runs before this one")


def _insert(module: cst.Module, after: int, function: cst.FunctionDef) -> cst.Module:
    body = list(module.body)
    body.insert(after + 1, function)
    return module.with_changes(body=body)


def _one_a_line(function: cst.FunctionDef, width: int = 120) -> cst.FunctionDef:
    """The function with one parameter a line, where its signature does not fit a line."""
    bare = function.with_changes(leading_lines=[], body=cst.SimpleStatementSuite([cst.Pass()]))
    if len(cst.Module([bare]).code.rstrip("\n")) - len(" pass") <= width:
        return function
    inner = cst.ParenthesizedWhitespace(cst.TrailingWhitespace(), indent=True, last_line=cst.SimpleWhitespace("    "))
    outer = cst.ParenthesizedWhitespace(cst.TrailingWhitespace(), indent=True)
    comma = cst.Comma(whitespace_after=inner)
    params = function.params

    def spread(group: Sequence[cst.Param]) -> list[cst.Param]:
        return [p.with_changes(comma=comma) for p in group]

    keyword = spread(params.kwonly_params)
    keyword[-1] = keyword[-1].with_changes(comma=cst.Comma(whitespace_after=outer))
    return function.with_changes(
        whitespace_before_params=inner,
        params=params.with_changes(
            posonly_params=spread(params.posonly_params),
            posonly_ind=cst.ParamSlash(comma=comma) if params.posonly_params else params.posonly_ind,
            params=spread(params.params),
            star_arg=cst.ParamStar(comma=comma),
            kwonly_params=keyword,
        ),
    )


def _without_call(params: cst.Parameters, call: str) -> cst.Parameters:
    if params.posonly_params:
        return params.with_changes(posonly_params=[p for p in params.posonly_params if p.name.value != call])
    return params.with_changes(params=[p for p in params.params if p.name.value != call])


def _without_out(params: cst.Parameters) -> cst.Parameters:
    """An ``out=None`` of the user's own is ours now: the body allocates, and the caller's tensor takes this rank's result."""

    def kept(group: Sequence[cst.Param]) -> list[cst.Param]:
        return [p for p in group if p.name.value != "out" or getattr(p.default, "value", "") != "None"]

    keyword = kept(params.kwonly_params)
    star = cst.MaybeSentinel.DEFAULT if isinstance(params.star_arg, cst.ParamStar) and not keyword else params.star_arg
    return params.with_changes(params=kept(params.params), star_arg=star, kwonly_params=keyword)


def _refuse_clashes(params: cst.Parameters, context: Context) -> None:
    host = context.program.host
    assert host is not None
    for param in (*params.posonly_params, *params.params, *params.kwonly_params):
        if param.name.value in ADDED:
            raise HostEntryError(
                f"`{host.name}` has a parameter `{param.name.value}`, which the distributed function adds",
                where=host.span,
                help="rename it; group, sizes and out are added to every host entry (out=None may stay)",
            )
    if isinstance(params.star_arg, cst.Param) or params.star_kwarg is not None:
        raise HostEntryError(
            f"`{host.name}` takes *args or **kwargs", where=host.span, help="name every parameter of a host entry"
        )


def _comma() -> cst.Comma:
    return cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))


def _equal() -> cst.AssignEqual:
    return cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
