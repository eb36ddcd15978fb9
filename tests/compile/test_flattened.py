"""What flattened loops carry: the rule says exactly where what Triton emits differs from the source.

Kernels of scalars are run as Triton printed them ahead of fusing their loops and behind it (`scalars`).
"""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from overlap.annotate.source import SourceUnit
from overlap.build import build_module, compile_kernel, parse_target, ttir
from overlap.build.flattened import early_tails
from overlap.codegen.passes import delay
from overlap.pipeline import Request, compile_source

from .scalars import run

X, OUT, TILES = 1000, 2000, 4


@triton.jit
def loaded_in_the_head_and_read_in_the_tail(x, out, n, m):
    before = tl.load(x)
    for i in tl.range(0, n, flatten=True):
        now = tl.load(x + 1 + i)
        acc = 0
        for k in range(m):
            acc += k * now
        tl.store(out + 2 * i, before)
        tl.store(out + 2 * i + 1, acc)
        before = now


@triton.jit
def loaded_in_the_head_and_read_there(x, out, n, m):
    before = tl.load(x)
    for i in tl.range(0, n, flatten=True):
        tl.store(out + 2 * i, before)
        now = tl.load(x + 1 + i)
        acc = 0
        for k in range(m):
            acc += k * now
        tl.store(out + 2 * i + 1, acc)
        before = now


@triton.jit
def loaded_in_the_tail(x, out, n, m):
    before = tl.load(x)
    for i in tl.range(0, n, flatten=True):
        acc = 0
        for k in range(m):
            acc += k * i
        now = tl.load(x + 1 + i)
        tl.store(out + 2 * i, before)
        tl.store(out + 2 * i + 1, acc)
        before = now


@triton.jit
def computed_in_the_head_for_the_tail_alone(x, out, n, m):
    before = tl.load(x)
    for i in tl.range(0, n, flatten=True):
        now = i * 3 + n
        acc = 0
        for k in range(m):
            acc += k * i
        tl.store(out + 2 * i, before + now)
        tl.store(out + 2 * i + 1, acc)
        before = now


@triton.jit
def computed_in_the_head_for_the_inner_loop(x, out, n, m):
    before = tl.load(x)
    for i in tl.range(0, n, flatten=True):
        now = i * 3 + n
        acc = 0
        for k in range(m):
            acc += k * now
        tl.store(out + 2 * i, before)
        tl.store(out + 2 * i + 1, acc)
        before = now


@triton.jit
def changed_in_the_tail(x, out, n, m):
    before = tl.load(x)
    for i in tl.range(0, n, flatten=True):
        acc = 0
        for k in range(m):
            acc += k * i
        before += 5
        tl.store(out + 2 * i, before)
        tl.store(out + 2 * i + 1, acc)


@triton.jit
def whether_it_is_the_first(x, out, n, m):
    first = 1
    for i in tl.range(0, n, flatten=True):
        acc = 0
        for k in range(m):
            acc += k * i
        tl.store(out + 2 * i, first)
        tl.store(out + 2 * i + 1, acc)
        first = 0


@triton.jit
def read_in_the_inner_loop(x, out, n, m):
    before = tl.load(x)
    for i in tl.range(0, n, flatten=True):
        now = tl.load(x + 1 + i)
        acc = 0
        for _ in range(m):
            acc += before
        tl.store(out + 2 * i, acc + now)
        before = now


@triton.jit
def handed_on_twice_and_read_in_the_head(x, out, n, m):
    before = tl.load(x)
    older = tl.load(x)
    for i in tl.range(0, n, flatten=True):
        tl.store(out + 2 * i, older)
        now = tl.load(x + 1 + i)
        acc = 0
        for k in range(m):
            acc += k * now
        tl.store(out + 2 * i + 1, acc)
        older = before
        before = now


@triton.jit
def made_by_the_inner_loop_and_read_in_the_tail(x, out, n, m):
    total = tl.load(x)
    for i in tl.range(0, n, flatten=True):
        acc = 0
        for k in range(m):
            acc += tl.load(x + k)
        tl.store(out + 2 * i, total)
        total = acc


@triton.jit
def made_by_the_inner_loop_and_entering_it(x, out, n, m):
    total = tl.load(x)
    for i in tl.range(0, n, flatten=True):
        for k in range(m):
            total += k * i
        tl.store(out + 2 * i, total)


@triton.jit
def not_flattened(x, out, n, m):
    before = tl.load(x)
    for i in tl.range(0, n):
        now = tl.load(x + 1 + i)
        acc = 0
        for k in range(m):
            acc += k * now
        tl.store(out + 2 * i, before)
        tl.store(out + 2 * i + 1, acc)
        before = now


RIGHT = (
    loaded_in_the_head_and_read_there,
    loaded_in_the_tail,
    computed_in_the_head_for_the_tail_alone,
    changed_in_the_tail,
    made_by_the_inner_loop_and_entering_it,
    not_flattened,
)
WRONG = (
    loaded_in_the_head_and_read_in_the_tail,
    computed_in_the_head_for_the_inner_loop,
    whether_it_is_the_first,
    read_in_the_inner_loop,
    handed_on_twice_and_read_in_the_head,
    made_by_the_inner_loop_and_read_in_the_tail,
)


@pytest.mark.parametrize("kernel", [*RIGHT, *WRONG], ids=lambda kernel: kernel.__name__)
def test_the_rule_is_what_triton_does(kernel):
    words = torch.empty(64, dtype=torch.int32, device="meta")
    made = compile_kernel(kernel, {"x": words, "out": words, "n": TILES, "m": 3}, parse_target("sm_90"))
    memory = {X + i: 7 * i * i + 1 for i in range(16)}
    source, fused = (
        run(made.stages[stage], {"x": X, "out": OUT, "n": TILES, "m": 3}, memory) for stage in ("ttir", "ttgir")
    )
    assert len(source) > len(memory)
    found = list(early_tails(ttir.parse(made.stages["ttir"])))
    assert bool(found) == (source != fused) == (kernel in WRONG), (found, source, fused)


def test_a_generated_kernel_that_counts_a_tile_late_is_found(repo, tmp_path, monkeypatch):
    """What two H200s showed: tiles of a flattened loop counted with the next one were counted ahead of their own stores."""
    monkeypatch.setattr(delay, "asks_to_flatten", lambda loop: None)
    unit = SourceUnit.from_file(str(repo / "templates/kernels/persistent_gemm.py"))
    request = Request(unit, plan="reduce_scatter_1d", on="c[M]", backend="tma_inline")
    path = tmp_path / "late.py"
    path.write_text(compile_source(request).module.text)
    (found,) = [f for f in build_module(str(path), target="sm_90", dtype="fp16").findings if f.severity == "error"]
    assert found.rule == "tail-reads-carried"
    assert "ol.pushed_async(ol_table, ol_counted" in path.read_text().splitlines()[found.line - 1]
