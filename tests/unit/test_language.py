"""The words as listed are the words that there are, and the page shows them."""

import os

import pytest

from overlap import language
from overlap.annotate.source import SourceUnit
from overlap.language.words import WORDS, table
from overlap.pipeline import Request, compile_source


def test_every_word_is_listed_with_its_parameters():
    functions = {name: word for name, word in vars(language).items() if hasattr(word, "arg_names") and name[0] != "_"}
    assert {name: tuple(word.arg_names) for name, word in functions.items()} == {
        name: word.params for name, word in WORDS.items()
    }
    assert all(word.__doc__ for word in functions.values())


def test_words_of_users_say_which_rule_they_obey():
    public = {word.name for word in WORDS.values() if word.public}
    assert public >= {"rank", "num_ranks", "symm_at", "wait", "notify", "put", "get", "after"}
    nvidia = {name for name, word in vars(language).items() if "asm" in getattr(word, "src", "") and name in WORDS}
    assert {name for name, word in WORDS.items() if word.nvidia} >= nvidia


@pytest.fixture
def language_page(repo, monkeypatch):
    monkeypatch.syspath_prepend(str(repo / "tests" / "support"))
    import language_page

    return language_page


def test_the_page_shows_todays_words(language_page):
    page = language_page.PAGE.read_text()
    assert language_page.with_parts(page, words=table()) == page, "run python tests/support/language_page.py --write"


def test_kernels_are_simulated_in_a_process_that_compiles_too(language_page, tmp_path):
    """Without TRITON_INTERPRET, as in a test suite that also launches kernels; those work as before."""
    from triton.runtime.jit import JITFunction

    from overlap.sim import check_ranks

    assert os.environ.get("TRITON_INTERPRET") != "1"
    before = JITFunction.run
    name, text = language_page.example()
    report = check_ranks(language_page.host_code(tmp_path, "compiled_too", text), world=2, seeds=(0,))
    assert report.ok, str(report)
    assert JITFunction.run is before


def test_functions_of_triton_are_known_by_any_name_in_a_process_that_compiles_too(repo, tmp_path):
    """Triton hashes the kernel by the functions that it names, while others stand in for them."""
    from overlap.sim import check_module

    assert os.environ.get("TRITON_INTERPRET") != "1"
    path = tmp_path / "out.py"
    source = SourceUnit.from_file(repo / "tests" / "kernels" / "wild" / "by_other_names.py")
    path.write_text(compile_source(Request(source, "all_gather_1d", "x[rows]")).module.text)
    report = check_module(str(path), world=2, shape={"rows": 5, "cols": 7})
    assert report.ok, str(report)
