"""What an operator's description says of its communicated tensors."""

import pytest

from overlap.backends.base import Realization
from overlap.runtime import Operator, Read, Source, TileAxis, Write


def operator(on, plan="plan: x\n", writes=(), **more):
    return Operator(
        name="matmul",
        kernel=None,
        body=None,
        tile_map=lambda tile: tile,
        source=Source("kernel.py", host_line=1, kernel_line=1),
        plan=plan,
        on=on,
        realization=Realization(backend="copy_engine"),
        inputs={"a": ("M", "K"), "b": ("K", "N")},
        outputs={"c": ("M", "N")},
        params={"a": "a_ptr", "b": "b_ptr", "c": "c_ptr"},
        axes=(TileAxis("M", "M", "BLOCK_M"), TileAxis("N", "N", "BLOCK_N"), *more.pop("axes", ())),
        reads=(Read("a", axes=("M", None), wraps=(False, False)),),
        writes=writes,
        **more,
    )


@pytest.mark.parametrize(
    ("on", "kind", "produced", "axis", "dim", "to", "to_dim"),
    [
        ("a[M]", "gather", False, "M", 0, None, None),
        ("a[K]", "gather", False, "K", 1, None, None),
        ("a[K:M]", "all_to_all", False, "K", 1, "M", 0),
        ("c[N]", "reduce_scatter", True, "N", 1, None, None),
        ("c[]", "all_reduce", True, None, 0, None, None),
        ("c[M:N]", "all_to_all", True, "M", 0, "N", 1),
    ],
)
def test_on_in_words(on, kind, produced, axis, dim, to, to_dim):
    (comm,) = operator(on, writes=(Write("c", axes=("M", "N")),)).comms
    assert (comm.kind, comm.produced, comm.axis, comm.dim, comm.to, comm.to_dim) == (
        kind,
        produced,
        axis,
        dim,
        to,
        to_dim,
    )
    assert str(comm) == on
    assert comm.param == f"{on[0]}_ptr"


def test_several_tensors_each_with_its_plan_and_layout():
    made = operator(
        ("a[M]", "c[M]"),
        plan=("plan: one\n", "plan: two\n"),
        writes=(Write("c", axes=("M", "N")),),
        layout=("stride_am", None),
        layouts={"c": (None, "stride_cn")},
    )
    first, second = made.comms
    assert (first.tensor, first.plan, first.layout) == ("a", "plan: one\n", ("stride_am", None))
    assert (second.tensor, second.plan, second.layout) == ("c", "plan: two\n", (None, "stride_cn"))
    assert (made.tensor, made.axis, made.dim) == ("a", "M", 0)
    assert not first.reduces and second.reduces
    with pytest.raises(ValueError, match="zip"):
        assert operator(("a[M]", "c[M]"), plan=("plan: one\n",)).comms


def test_tiles_that_an_axis_tells_apart_alone_add_to_the_same_elements():
    parts = (TileAxis("K", "K", "BLOCK_SPLIT"),)
    split = operator("c[M]", writes=(Write("c", axes=("M", "N"), adds=True),), axes=parts)
    assert split.comms[0].adds
    # A plain store whose index is not understood along some axis starts from nothing.
    assert not operator("c[M]", writes=(Write("c", axes=("M", "N")),), axes=parts).comms[0].adds
    assert not operator("c[M]", writes=(Write("c", axes=("M", "N")),)).comms[0].adds
    assert not operator("a[M]").comms[0].adds
