"""The readers of TTIR and PTX on small texts: scopes, regions, data flow, paths."""

import pytest

from overlap.build import dataflow, ptx, ttir

TTIR = """\
#loc = loc("kernel.py":3:0)
#loc1 = loc("kernel.py":7:9)
#loc2 = loc("words.py":40:4)
module {
  tt.func public @kernel(PARAMETERS) attributes {noinline = false} {
    %c0 = arith.constant 0 : i32 loc(#loc3)
    %c1 = arith.constant 1 : i32 loc(#loc)
    %x:2 = scf.while (%a = %c0, %b = %c1) : (i32, i32) -> (i32, i32) {
      %less = arith.cmpi slt, %a, %n : i32 loc(#loc)
      scf.condition(%less) %b, %a : i32, i32 loc(#loc)
    } do {
    ^bb0(%a: i32 loc("a"(#loc1)), %b: i32 loc("b"(#loc1))):
      %next = arith.addi %a, %b : i32 loc(#loc)
      scf.yield %next, %c1 : i32, i32 loc(#loc)
    } loc(#loc1)
    %y = scf.for %i = %c0 to %n step %c1 iter_args(%acc = %x#0) -> (i32)  : i32 {
      %even = arith.cmpi eq, %i, %c0 : i32 loc(#loc)
      %pick = scf.if %even -> (i32) {
        scf.yield %acc : i32 loc(#loc)
      } else {
        %t = tt.elementwise_inline_asm "mov $0, %clock; // } {" {constraints = "=r,r"} %i : i32 -> i32 loc(#loc)
        scf.yield %t : i32 loc(#loc)
      } loc(#loc)
      scf.yield %pick : i32 loc(#loc)
    } {tt.flatten, tt.num_stages = 3 : i32} loc(#loc)
    %r = "tt.reduce"(%y) <{axis = 0 : i32}> ({
    ^bb0(%l: i32 loc(unknown), %h: i32 loc(unknown)):
      %s = arith.addi %l, %h : i32 loc(#loc)
      tt.reduce.return %s : i32 loc(#loc)
    }) : (i32) -> i32 loc(#loc)
    %q = tt.addptr %p, %r : !tt.ptr<f32>, i32 loc(#loc)
    %v = tt.load %q : !tt.ptr<f32> loc(#loc1)
    %w = tt.descriptor_load %desc[%c0, %c1] : !tt.tensordesc<tensor<16x32xbf16>> -> tensor<16x32xbf16> loc(#loc)
    tt.return loc(#loc)
  } loc(#loc)
} loc(#loc)
#loc3 = loc(callsite(#loc2 at #loc4))
#loc4 = loc("seen"(#loc1))
""".replace(
    "PARAMETERS",
    '%p: !tt.ptr<f32> {tt.divisibility = 16 : i32} loc("p"(#loc)), %n: i32 loc("n"(#loc)), '
    '%desc: !tt.tensordesc<tensor<16x32xbf16>> loc("d"(#loc)), %desc_0: i64 loc("d"(#loc))',
)


@pytest.fixture(scope="module")
def kernel() -> ttir.Function:
    return ttir.parse(TTIR)


def named(kernel, name, number=0):
    return [value for op in kernel.ops() for value in op.results if value.name == name][number]


def names(values):
    return {value.name for value in values}


def test_every_operation_is_read_once(kernel):
    assert len(kernel.ops()) == 1 + 21
    assert [op.name for op in kernel.ops("scf.for", "scf.while", "scf.if", "tt.reduce")] == [
        "scf.while",
        "scf.for",
        "scf.if",
        "tt.reduce",
    ]


def test_parameters_go_by_their_source_names(kernel):
    """A descriptor is several values with one name; the first stands for it."""
    assert list(kernel.params) == ["p", "n", "d"]
    assert kernel.params["d"].name == "desc"
    load = kernel.ops("tt.descriptor_load")[0]
    assert dataflow.bases(load.operands[0]) == {kernel.params["d"]}
    assert dataflow.parameter_of(kernel, kernel.params["d"]) == "d"


def test_a_parameter_keeps_its_name_where_assignments_give_it_others():
    """Of `chosen = own if ... else a`, two parameters are called `chosen`; a load through it may touch the memory of either."""
    read = ttir.parse(CHOSEN)
    assert list(read.params) == ["a", "own", "n"]
    load = read.ops("tt.descriptor_load")[0]
    assert {dataflow.parameter_of(read, base) for base in dataflow.bases(load.operands[0])} == {"a", "own"}


CHOSEN = """\
#loc = loc("kernel.py":3:0)
#loc1 = loc("a"(#loc))
#loc2 = loc("own"(#loc))
#loc3 = loc("chosen"(#loc1))
#loc4 = loc("chosen"(#loc2))
module {
  tt.func public @kernel(PARAMETERS) attributes {noinline = false} {
    %c0 = arith.constant 0 : i32 loc(#loc)
    %0 = arith.cmpi eq, %n, %c0 : i32 loc(#loc)
    %1 = arith.select %0, %chosen_0, %chosen : !tt.tensordesc<tensor<16x32xbf16>> loc(#loc)
    %w = tt.descriptor_load %1[%c0, %c0] : !tt.tensordesc<tensor<16x32xbf16>> -> tensor<16x32xbf16> loc(#loc)
    tt.return loc(#loc)
  } loc(#loc)
} loc(#loc)
""".replace(
    "PARAMETERS",
    '%chosen: !tt.tensordesc<tensor<16x32xbf16>> loc("chosen"(#loc1)), '
    '%chosen_0: !tt.tensordesc<tensor<16x32xbf16>> loc("chosen"(#loc4)), %n: i32 loc("n"(#loc))',
)


def test_locations_lead_to_the_outermost_caller(kernel):
    """`loc3` is inlined code of words.py, called at line 7 of the kernel."""
    constant = kernel.ops("arith.constant")[0]
    assert (constant.path, constant.line) == ("kernel.py", 7)


def test_loop_attributes_are_kept(kernel):
    assert "tt.flatten" in kernel.ops("scf.for")[0].trailer


def test_results_of_while_come_from_the_condition(kernel):
    """`%x#0` is the condition's first value, `%b`, so the second initial value; not `%less`."""
    slice_ = dataflow.backward_slice([named(kernel, "x#0")])
    assert "c1" in names(slice_)
    assert "less" not in names(slice_) and "next" not in names(slice_)


def test_carried_values_come_from_both_ends_and_may_be_followed_to_the_entry_only(kernel):
    loop = kernel.ops("scf.for")[0]
    carried = next(value for value in loop.arguments if value.role == "carried")
    assert names(dataflow.sources(carried)) == {"x#0", "pick"}
    assert names(dataflow.sources(carried, frozenset([loop]))) == {"x#0"}


def test_results_of_if_come_from_both_branches_and_not_from_the_condition(kernel):
    assert names(dataflow.sources(named(kernel, "pick"))) == {"acc", "t"}


def test_a_reduction_comes_from_its_operand(kernel):
    load = kernel.ops("tt.load")[0]
    assert {"r", "y", "acc", "i", "t"} <= names(dataflow.backward_slice(load.operands))


def test_an_undefined_value_is_an_error():
    with pytest.raises(ValueError, match="%zz is used before it is defined"):
        ttir.parse(TTIR.replace("arith.addi %a, %b", "arith.addi %a, %zz"))


def test_a_text_without_a_function_is_an_error():
    with pytest.raises(ValueError, match="no tt.func"):
        ttir.parse("module {\n}\n")


PTX = """\
.visible .entry kernel(
	.param .u64 kernel_param_0
)
{
	.reg .b32 	%r<4>;
	.loc	1 10 3                          // k.py:10:3
	@%p1 bra 	$L__BB0_2;
	st.global.b32 [ %rd1 + 0 ], { %r1 };
	.loc	2 140 5, function_name $L__info_string0, inlined_at 1 12 5 // words.py:140:5
	bar.sync 	0;
$L__BB0_2:
	.loc	2 141 25                        // words.py:141:25 @[ mid.py:3:1 @[ k.py:13:24 ] ]
	{
	.reg .pred complete;
	waitLoop:
	mbarrier.try_wait.parity.shared.b64 complete, [%r1], %r2;
	@!complete bra.uni waitLoop;
	}
	@%p2 atom.global.sys.release.exch.b64 %rd2, [ %rd3 + 0 ], %rd4;
	@%p3 bra 	$L__BB0_2;
	ret;
}
	.file	1 "k.py"
"""


@pytest.fixture(scope="module")
def program() -> ptx.Program:
    return ptx.parse(PTX)


def only(program, word):
    return next(i for i in program.instructions if word in i.words)


def test_instructions_know_their_line(program):
    assert only(program, "st").line == 10
    assert only(program, "bar").line == 12
    assert only(program, "atom").line == 13
    assert only(program, "atom").words == ("atom", "global", "sys", "release", "exch", "b64")


def test_paths_go_back_through_branches_and_loops(program):
    """Of the two ways to the release one has the store, behind a barrier, the other neither."""
    release = only(program, "atom")
    assert program.meets_before(release, lambda i: "st" in i.words, lambda i: "bar" in i.words) is None
    assert program.meets_before(release, lambda i: "st" in i.words, lambda i: False) is only(program, "st")
    assert program.meets_before(release, lambda i: i is release, lambda i: False) is release


def test_what_can_follow_what(program):
    store, release, leave = only(program, "st"), only(program, "atom"), only(program, "ret")
    assert program.can_follow(store, release) and program.can_follow(release, leave)
    assert program.can_follow(release, release), "through the loop"
    assert not program.can_follow(release, store) and not program.can_follow(leave, store)


GUARDED = """\
.visible .entry kernel()
{
	setp.lt.s32 	%p1, %r1, %r2;
	setp.lt.s32 	%p2, %r3, %r4;
	and.pred 	%p3, %p1, %p2;
	selp.b32 	%r5, 1, 0, %p1;
	setp.ne.b32 	%p4, %r5, 0;
	@%p4 bar.sync 	0;
	selp.b32 	%r6, 1, 0, %p3;
	setp.ne.b32 	%p5, %r6, 0;
	@%p5 cp.async.bulk.wait_group 	0;
	@%p3 atom.global.sys.release.exch.b64 %rd2, [ %rd3 + 0 ], %rd4;
	@!%p3 red.global.sys.release.add.s64 [ %rd3 + 0 ], %rd4;
	ret;
}
"""


def test_predicates_that_an_instruction_is_under():
    """A release under more than a barrier is behind it, and one under less than a wait is not behind that."""
    program = ptx.parse(GUARDED)
    barrier, wait, release = only(program, "bar"), only(program, "cp"), only(program, "atom")
    assert {"%p1", "%p2", "%p3"} <= program.guards(release)
    assert "%p1" in program.guards(barrier, alone=True) and "%p3" in program.guards(wait, alone=True)
    assert program.guards(wait, alone=True).isdisjoint({"%p1", "%p2"}) and "%p1" in program.guards(wait)
    assert program.guards(only(program, "red")) == frozenset()


def test_a_text_without_an_entry_is_an_error():
    with pytest.raises(ValueError, match="no .entry"):
        ptx.parse(".version 8.4\n")
