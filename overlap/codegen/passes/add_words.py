"""Has programs add up what is sent to their rank in words, behind their last tile.

Before::

        tl.store(c_ptrs, c, mask=mask)
        # Send the tile of c to the ranks that add it up, in words.
        ol.send_words(ol_table, ol_run, ol_slots, ol_words, ol_made, ol_unit, ol_lanes, ...)

After::

        tl.store(c_ptrs, c, mask=mask)
        # Send the tile of c to the ranks that add it up, in words.
        ol.send_words(ol_table, ol_run, ol_slots, ol_words, ol_made, ol_unit, ol_lanes, ...)
    # This program's share of the rank's part of c: words of all ranks, in rank order.
    ol.sum_words(ol_slots, ol_words, ol_state, ol_made, ol_out, ol_unit, ol_lanes, ol_sum)

The same stands ahead of every ``return``. Kernels whose results go otherwise pass through.
"""

from __future__ import annotations

import libcst as cst

from ..context import Context
from ..ends import at_every_end
from ..locate import comment, find_function, replaced, statements


def run(module: cst.Module, context: Context) -> cst.Module:
    if not context.sending:
        return module
    names = context.names
    given = ", ".join(map(names.local, ("slots", "words", "state", "made", "out", "unit", "lanes", "sum")))
    tensors = " and ".join(on.tensor for on in context.produced)
    (added,) = statements(f"{names.language}.sum_words({given})\n")
    assert isinstance(added, cst.SimpleStatementLine)
    said = comment(f"This program's share of the rank's part of {tensors}: words of all ranks, in rank order.")
    kernel = find_function(module, context.program.kernel.name)
    return replaced(module, kernel, at_every_end(kernel, added, said))
