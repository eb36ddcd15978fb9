"""The words for users' kernels in PTX: each keeps the rule of the memory model that docs/language.md says it obeys."""

import re

import pytest

from overlap.build import check

from .support import VERSION, compiled

READS = {"puts", "adds", "gets", "waits_and_forgets", "loads_by_tma", "loads_by_tma_without_fence"}


def found(kernel: str, **options) -> set[str]:
    made = compiled("signals", kernel, options=tuple(options.items()))
    return {f.rule for f in check(made, guarded=("box_ptr",) if kernel in READS else (), flags="h")}


@pytest.mark.parametrize("kernel", ["puts", "adds", "gets", "loads_by_tma", "stores_by_tma"])
def test_words_keep_every_rule(kernel):
    assert found(kernel) == set()


@pytest.mark.parametrize(
    ("kernel", "rule", "repaired"),
    [
        ("waits_and_forgets", "wait-feeds-load", None),
        ("waits_and_forgets", "wait-used", None),
        ("device_scope", "system-scope", None),
        ("loads_by_tma_without_fence", "proxy-fence", None),
        ("bare_flag", "barrier-before-release", (3, 9)),
        ("stores_by_tma_not_landed", "store-drained", (3, 8)),
    ],
)
def test_without_the_word_the_rule_is_broken(kernel, rule, repaired):
    """Some Triton versions put the barrier, or the wait for the store, there themselves."""
    assert (rule in found(kernel)) == (repaired is None or VERSION < repaired)


def test_accesses_to_peers_stay_vectors():
    text = compiled("signals", "puts").assembly
    assert re.search(r"\bst\.global\.v4\.b32\b", text) and len(re.findall(r"\bld\.global\.v4\.b32\b", text)) >= 2
    assert "ld.global.v4.b32" in compiled("signals", "gets").assembly


def test_no_kernel_is_another_one_on_some_rank():
    """Rank and number of ranks are loaded; a first launch's 1 may be a constant and still be 64 bits in the flag."""
    text = compiled("signals", "puts", options=(("launch", 1),)).assembly
    assert re.search(r"atom\.global\.sys\.release\.exch\.b64", text)
    assert found("puts", launch=1) == set()
