"""Global shapes from what callers pass: shards, sizes, and the extents of a direct launch."""

from types import SimpleNamespace

import pytest
import torch

from overlap.chunkplan.region import Box
from overlap.errors import RuntimeContractError, UsageError
from overlap.runtime.calls.shapes import check_device, check_sizes, global_shape, launch_shape, piece
from overlap.runtime.operator import Comm

OPERATOR = SimpleNamespace(inputs={"a": ("M", "K")}, outputs={"c": ("M", "N")}, extents={"M": "m", "N": "n", "K": "k"})


def comm(kind, produced=True):
    axis = None if kind == "all_reduce" else "M"
    to, to_dim = ("N", 1) if kind == "all_to_all" else (None, None)
    return Comm("c", "c_ptr", kind, produced, ("M", "N"), axis, 0, to, to_dim, "")


def tensor(*shape):
    return torch.empty(shape, device="meta")


@pytest.mark.parametrize(
    ("kind", "produced", "held", "seen"),
    [
        ("gather", False, 0, None),
        ("reduce_scatter", True, 0, None),
        ("all_reduce", True, None, None),
        ("all_to_all", False, 0, 1),
        ("all_to_all", True, 1, 0),
    ],
)
def test_what_is_sharded_for_the_caller_and_for_the_kernel(kind, produced, held, seen):
    made = comm(kind, produced)
    assert (made.held, made.seen) == (held, seen)


def test_a_piece_follows_torch_chunk():
    assert piece((10, 4), 0, 4, 3) == Box((9, 0), (10, 4))
    assert piece((10, 4), None, 4, 3) == Box((0, 0), (10, 4))
    assert piece((2, 4), 0, 4, 3).empty


def test_sizes_complete_a_shard_and_are_checked_against_it():
    gathered = comm("gather", False)
    assert global_shape(gathered, tensor(5, 8), {}, 4, 1) == (20, 8)
    assert global_shape(gathered, tensor(4, 8), {"M": 19}, 4, 3) == (19, 8)
    with pytest.raises(RuntimeContractError, match="the shard of `c` has 5 along M, its piece of 19 is 4"):
        global_shape(gathered, tensor(5, 8), {"M": 19}, 4, 3)
    with pytest.raises(RuntimeContractError, match="rank 2: `c` has 8 along N, sizes says 9"):
        global_shape(gathered, tensor(5, 8), {"N": 9}, 4, 2)
    with pytest.raises(RuntimeContractError, match="`c` has 1 dimensions"):
        global_shape(gathered, tensor(5), {}, 4, 2)


def test_what_a_host_function_makes_is_whole_or_the_ranks_own_part():
    assert global_shape(comm("reduce_scatter"), tensor(20, 8), {"M": 20}, 4, 1, made=True) == (20, 8)
    assert global_shape(comm("all_to_all"), tensor(4, 8), {"M": 19}, 4, 3, made=True) == (19, 8)
    with pytest.raises(RuntimeContractError, match="`c` has 5 along M, sizes says 20"):
        global_shape(comm("reduce_scatter"), tensor(5, 8), {"M": 20}, 4, 1, made=True)
    with pytest.raises(RuntimeContractError, match="`c` has 5 along M, its piece of 19 is 4"):
        global_shape(comm("all_to_all"), tensor(5, 8), {"M": 19}, 4, 3, made=True)


def test_a_launch_passes_what_its_kernel_sees():
    assert launch_shape(OPERATOR, comm("reduce_scatter"), {"m": 19, "n": 8}, tensor(4, 8), 4, 3) == (19, 8)
    assert launch_shape(OPERATOR, comm("all_reduce"), {"m": 19, "n": 8}, tensor(19, 8), 4, 3) == (19, 8)
    # The kernel makes 4 of 19 rows, this rank keeps 2 of 8 columns.
    assert launch_shape(OPERATOR, comm("all_to_all"), {"m": 4, "n": 8}, tensor(19, 2), 4, 3) == (19, 8)
    # It holds 4 of 19 rows and sees 2 of 8 columns.
    assert launch_shape(OPERATOR, comm("all_to_all", False), {"m": 19, "n": 2}, tensor(4, 8), 4, 3) == (19, 8)


@pytest.mark.parametrize(
    ("kind", "arguments", "shard", "message"),
    [
        ("reduce_scatter", {"m": 19, "n": 8}, (5, 8), r"this rank holds 4 \(15:19\), its shard of `c` has 5"),
        ("reduce_scatter", {"m": 19, "n": 9}, (4, 8), "the launch passes n=9, its shard of `c` has 8 along N"),
        ("all_reduce", {"m": 20, "n": 8}, (19, 8), "the launch passes m=20, its shard of `c` has 19 along M"),
        (
            "all_to_all",
            {"m": 19, "n": 8},
            (19, 2),
            "m=19, its shard of `c` has 19 along M, of which the kernel of this rank sees 4",
        ),
    ],
)
def test_launches_that_do_not_fit_the_shard(kind, arguments, shard, message):
    with pytest.raises(RuntimeContractError, match=message):
        launch_shape(OPERATOR, comm(kind), arguments, tensor(*shard), 4, 3)


def test_the_sharded_extent_must_be_passed():
    with pytest.raises(UsageError, match="the launch gives `m`, the extent of M, no integer"):
        launch_shape(OPERATOR, comm("reduce_scatter"), {"m": None, "n": 8}, tensor(4, 8), 4, 3)


@pytest.mark.parametrize(
    ("sizes", "message"), [({"Q": 3}, "axis 'Q'"), ({"M": -1}, "size of M"), ({"M": 2.0}, "size of M")]
)
def test_sizes_are_names_and_numbers(sizes, message):
    with pytest.raises(UsageError, match=message):
        check_sizes(OPERATOR, sizes)


def test_a_tensor_is_where_its_rank_works():
    runtime = SimpleNamespace(device=torch.device("cpu"), rank=2)
    check_device("a", torch.empty(3), runtime)
    with pytest.raises(RuntimeContractError, match="`a` is on meta; rank 2 of this group works on cpu") as caught:
        check_device("a", tensor(3), runtime)
    assert "set_device" in caught.value.help


def test_an_extent_that_no_parameter_is_has_to_be_declared():
    nobody = type(OPERATOR)(**{**vars(OPERATOR), "extents": {"N": "n"}})
    with pytest.raises(UsageError, match="which parameter of the kernel is the extent of M") as caught:
        launch_shape(nobody, comm("reduce_scatter"), {"n": 8}, tensor(4, 8), 4, 3)
    assert "axis_count M=range extent=PARAMETER" in caught.value.help
