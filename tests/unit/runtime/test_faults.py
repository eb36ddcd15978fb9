"""What a user reads when a wait gave up."""

from types import SimpleNamespace

import pytest
import torch

from overlap.chunkplan.build import build_plan
from overlap.chunkplan.library import find_template
from overlap.chunkplan.plan import TensorSpec
from overlap.errors import DeadlineError, RuntimeContractError
from overlap.runtime.faults.faults import FaultRecord, deadline_error, waited_for
from overlap.runtime.memory.part import part_layout
from overlap.runtime.operator import Comm
from overlap.runtime.tables.sums import addition
from overlap.schedule.pieces import pieces
from overlap.schedule.sync import assign_slots
from overlap.schedule.table import SLOT_WORDS, done_base, flag_base, state_words

WORLD, RANK = 3, 1
BASES = [0x10000, 0x20000, 0x30000]


@pytest.fixture
def memory():
    runtime = SimpleNamespace(rank=RANK, world=WORLD)
    state = torch.zeros(state_words(WORLD, 4), dtype=torch.int64)
    return SimpleNamespace(runtime=runtime, state=state, addresses=BASES, words=None)


@pytest.fixture
def instance():
    path, text = find_template("all_gather_1d_push")
    plan = build_plan(
        text, world=WORLD, tensor=TensorSpec("a", (9, 4)), dim=0, split=1, direction="push", path="<plan of matmul>"
    )
    return SimpleNamespace(plan=plan, slots=tuple(assign_slots(plan, r) for r in range(WORLD)))


def word(rank, slot):
    return BASES[rank] + slot * SLOT_WORDS * 8


def test_a_flag_is_the_chunk_that_raises_it(memory, instance):
    (first, second) = sorted(instance.slots[RANK].items(), key=lambda item: item[1])
    for op_id, slot in (first, second):
        text, where = waited_for(memory, word(RANK, flag_base(WORLD) + slot), instance)
        op = instance.plan.op(op_id)
        assert f"a{op.dst.box} from rank {op.src_rank} (flag {slot} of rank {RANK}; rank {op_id[0]} operation" in text
        assert where.path == "<plan of matmul>"


def test_a_flag_at_a_peer_is_told_from_the_own(memory, instance):
    text, _ = waited_for(memory, word(2, flag_base(WORLD)), instance)
    assert "flag 0 of rank 2" in text


def test_ready_and_done_words_name_their_rank(memory, instance):
    assert waited_for(memory, word(RANK, 4 + 2), instance) == ("rank 2 to be ready", None)
    assert waited_for(memory, word(RANK, done_base(WORLD)), instance) == ("rank 0 to finish the launch before", None)


def test_what_is_unknown_is_still_said(memory, instance):
    assert waited_for(memory, word(RANK, flag_base(WORLD) + 3), instance)[0] == "flag 3 of rank 1"
    assert waited_for(memory, word(RANK, flag_base(WORLD)), None)[0] == "flag 0 of rank 1"
    assert waited_for(memory, 0x999, instance)[0] == "the word at 0x999"


def test_the_error_names_rank_operation_values_and_plan_line(memory, instance):
    record = FaultRecord(word(RANK, flag_base(WORLD)), 7, 6, 0)
    error = deadline_error("matmul", memory, record, instance, 30.0)
    assert isinstance(error, DeadlineError) and isinstance(error, RuntimeContractError)
    text = error.render()
    assert "rank 1: `matmul` waited 30 s for a[" in text and "wanted launch 7, seen 6" in text
    assert text.startswith("<plan of matmul>:") and "release" in text


def test_a_wait_of_the_sum_names_the_summand_it_waited_for(memory):
    """It polls the flags that tiles of a gather would poll, in the same words."""
    _, text = find_template("reduce_scatter_1d")
    plan = build_plan(
        text, world=WORLD, tensor=TensorSpec("c", (9, 4)), dim=0, direction="push", path="<plan of matmul>"
    )
    slots = tuple(assign_slots(plan, r) for r in range(WORLD))
    (piece,) = pieces(plan, RANK, "c")[1]
    layout = part_layout(
        plan, Comm("c", "c_ptr", "reduce_scatter", True, ("M", "N"), "M", 0, None, None, ""), RANK, (0, 1)
    )
    added = addition(piece, layout, slots[RANK], WORLD, piece.chunk.box, (4, 1))
    instance = SimpleNamespace(plan=plan, slots=slots)
    said = [waited_for(memory, BASES[RANK] + 8 * flag, instance)[0] for _, flag in added.summands if flag >= 0]
    assert len(said) == 2
    for text, source in zip(said, (0, 2), strict=True):
        assert text.startswith(f"c[3:6, 0:4] from rank {source} (flag ") and f"rank {source} operation" in text
