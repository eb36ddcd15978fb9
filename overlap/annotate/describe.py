"""`describe`: a program model as text, for ``overlap explain``."""

from __future__ import annotations

from .model import Access, Axis, DispatchRegion, HostTensor, ProgramModel

_STYLES = {
    "grid_1d": "1-D grid, one tile a program",
    "grid_nd": "n-D grid, one tile a program",
    "persistent": "persistent loop over tiles",
}
_FORMS = {
    "assign": "one a program",
    "persistent_for": "target of the tile loop",
    "persistent_assign": "advanced in the loop",
}


def describe(program: ProgramModel) -> str:
    """Axes, tile ids, regions with their slices, accesses, tensors and the host entry, one fact a line."""
    kernel = program.kernel
    lines = [f"kernel {kernel.qualname} ({kernel.span.path}:{kernel.span.line}), {_STYLES[kernel.style]}"]
    lines += [f"  axis {_axis(axis)}" for axis in kernel.axes]
    for tile in kernel.tile_ids:
        left = f", without the last {tile.left}" if tile.left else ""
        lines.append(f"  tile id {tile.name}: {_FORMS[tile.form]}{left} (line {tile.span.line})")
    for region in kernel.regions:
        lines += [f"  {line}" for line in _region(region)]
    for tensor in kernel.tensors:
        lines.append(f"  {tensor.mode} {tensor.param}[{', '.join(tensor.dims)}]")
        lines += [f"    {_access(a)}" for a in kernel.accesses if a.tensor == tensor.param]
    if program.host:
        host = program.host
        inputs = " ".join(map(_tensor, host.inputs))
        lines.append(
            f"host {host.name}: {inputs} -> {' '.join(map(_tensor, host.outputs))}, launch on line {host.launch_line}"
        )
        lines += [f"  {name} is passed as {param}" for name, param in host.tensor_params]
    else:
        lines.append("host: no host_entry")
    return "\n".join(lines)


def _axis(axis: Axis) -> str:
    if axis.block is None:
        return f"{axis.name}: extent {axis.extent}, a range inside the tile"
    count = f"{axis.count_name} = " if axis.count_name else ""
    return f"{axis.name}: extent {axis.extent}, block {axis.block}, {count}cdiv({axis.extent}, {axis.block}) tiles"


def _region(region: DispatchRegion) -> list[str]:
    source = f"tile id {region.tile_id}" if region.tile_id else f"program ids over {', '.join(region.grid_axes)}"
    pids = ", ".join(f"{variable} on {axis}" for axis, variable in region.pid_map)
    lines = [f"dispatch region {region.index} (lines {region.begin_line}-{region.end_line}): {source} -> {pids}"]
    for statement in region.slice:
        first, *rest = statement.text.splitlines()
        where = "inside" if statement.inside else "before"
        lines.append(f"  {where} {statement.line:>4}  {first}")
        lines += [f"  {'':>{len(where) + 5}}  {line}" for line in rest]
    return lines


def _access(access: Access) -> str:
    dims = []
    for axis, offset, wraps in zip(access.axes, access.offsets, access.wraps, strict=True):
        dims.append(f"{offset}{f' on {axis}' if axis else ''}{', wrapped' if wraps else ''}")
    place = f"region {access.region}" if access.region is not None else "no region"
    return f"line {access.span.line}: {access.mode} by {access.kind.replace('_', ' ')} at [{'; '.join(dims)}], {place}"


def _tensor(tensor: HostTensor) -> str:
    return f"{tensor.name}[{','.join(tensor.dims)}]"
