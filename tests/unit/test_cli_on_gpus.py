"""Commands that start a process a GPU: torchrun hands each of their options on, and takes none for its own."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from overlap.cli import on_gpus
from overlap.cli.main import cli


def options() -> list:
    """Every option of the commands that may start ranks, as a user would write it."""
    context = cli.make_context("overlap", ["doctor"])
    return [
        pytest.param(name, word, id=f"{name} {word}")
        for name in ("calibrate", "trace", "tune")
        for param in cli.get_command(context, name).params
        for word in param.opts
        if word.startswith("-")
    ]


@pytest.mark.parametrize(("command", "option"), options())
def test_an_option_reaches_the_ranks(monkeypatch, command, option):
    from torch.distributed.run import get_args_parser

    ran = []
    monkeypatch.setattr(on_gpus.subprocess, "run", lambda line, **_: ran.append(line) or SimpleNamespace(returncode=0))
    words = [command, option, "x", f"{option}=y"]
    assert on_gpus.start(4, 3, words) == 0
    (line,) = ran
    assert line[1:3] == ["-m", "torch.distributed.run"]
    taken = get_args_parser().parse_args(line[3:])
    assert (taken.module, taken.training_script, taken.training_script_args) == (True, "overlap", words)
    assert taken.nproc_per_node == "3"
