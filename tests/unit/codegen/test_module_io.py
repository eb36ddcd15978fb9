"""Headers in and out, and where the original is looked for."""

from __future__ import annotations

import hashlib
import os

import pytest

from overlap.codegen.module_io import Header, find_source, load_module, read_header
from overlap.errors import KernelCrashFault, SourceError

FIELDS = {name: f"some {name}" for name in Header.__dataclass_fields__}


def test_round_trip_with_long_lines():
    header = Header(**{**FIELDS, "regenerate": "overlap compile " + " ".join(f"--set KEY_{i}={i}" for i in range(30))})
    text = header.text() + "\nimport os\n"
    assert max(map(len, text.splitlines())) <= 120
    assert read_header(text, "out.py") == header


@pytest.mark.parametrize("missing", FIELDS)
def test_every_part_is_needed(missing):
    text = "\n".join(line for line in Header(**FIELDS).text().splitlines() if f"overlap {missing}:" not in line)
    with pytest.raises(SourceError, match=missing) as caught:
        read_header(text, "out.py")
    assert caught.value.where.path == "out.py" and caught.value.help


def test_a_user_file_is_no_generated_module():
    with pytest.raises(SourceError, match="not a module generated"):
        read_header("import torch\n# overlap source: x\n", "user.py")


@pytest.fixture
def original(tmp_path):
    path = tmp_path / "project" / "kernels" / "user.py"
    path.parent.mkdir(parents=True)
    path.write_text("x = 1\n")
    return path


def header_for(original, source: str) -> Header:
    return Header(**{**FIELDS, "source": source, "sha256": hashlib.sha256(original.read_bytes()).hexdigest()})


def test_found_from_the_working_folder_and_from_the_module_upwards(original, tmp_path, monkeypatch):
    header = header_for(original, "kernels/user.py")
    monkeypatch.chdir(tmp_path / "project")
    assert find_source(header, str(tmp_path / "out.py")) == "kernels/user.py"
    monkeypatch.chdir("/")
    out = tmp_path / "project" / "build" / "deep" / "out.py"
    assert os.path.samefile(find_source(header, str(out)), original)


def test_gone_or_changed(original, tmp_path, monkeypatch):
    monkeypatch.chdir("/")
    header = header_for(original, str(original))
    original.write_text("x = 2\n")
    with pytest.raises(SourceError, match="has changed"):
        find_source(header, str(tmp_path / "out.py"))
    original.unlink()
    with pytest.raises(SourceError, match="not there"):
        find_source(header, str(tmp_path / "out.py"))


def test_loading(tmp_path):
    (tmp_path / "beside.py").write_text("value = 5\n")
    good = tmp_path / "good.py"
    good.write_text("from beside import value\n")
    assert load_module(str(good)).value == 5
    bad = tmp_path / "bad.py"
    bad.write_text("x = (\n")
    with pytest.raises(SourceError, match="not valid Python") as caught:
        load_module(str(bad))
    assert caught.value.where.path == str(bad)
    raising = tmp_path / "raising.py"
    raising.write_text("raise ValueError('no')\n")
    with pytest.raises(KernelCrashFault, match="ValueError: no"):
        load_module(str(raising))
    with pytest.raises(SourceError, match="no such file"):
        load_module(str(tmp_path / "gone.py"))
