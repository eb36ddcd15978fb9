"""Import directions, and that the compiler half works where torch and Triton are not installed."""

import os
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import overlap

COMPILER_HALF = ("errors", "settings", "annotate", "chunkplan", "schedule", "codegen")

BLOCKED = """
import importlib, pkgutil, sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "triton"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Refuse())
module = importlib.import_module(sys.argv[1])
found = [sys.argv[1]]
for info in pkgutil.walk_packages(getattr(module, "__path__", []), module.__name__ + "."):
    importlib.import_module(info.name)
    found.append(info.name)
print(len(found))
"""


def python(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *args], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("room", COMPILER_HALF)
def test_the_compiler_half_imports_without_torch_and_triton(room):
    """Every module of the room, not just its __init__."""
    done = python("-c", BLOCKED, f"overlap.{room}")
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 1


def test_importing_overlap_loads_neither_torch_nor_triton():
    done = python("-c", "import sys, overlap; print(sorted({'torch', 'triton', 'libcst'} & set(sys.modules)))")
    assert done.stdout == "[]\n", done.stderr


def test_importing_operators_loads_no_tracer():
    """That takes as long again as torch itself."""
    done = python("-c", "import sys, overlap.ops; print('torch' in sys.modules, 'torch._dynamo' in sys.modules)")
    assert done.stdout == "True False\n", done.stderr


def test_the_command_starts_without_torch_and_triton():
    run = "import runpy\nsys.argv = ['overlap', '--help']\nrunpy.run_module('overlap', run_name='__main__')\n"
    done = python("-c", BLOCKED.split("module =")[0] + run)
    assert done.returncode == 0, done.stderr
    assert "simulate" in done.stdout


def lint_imports(root: Path) -> subprocess.CompletedProcess[str]:
    """import-linter on the package below ``root``, by that folder's pyproject.toml."""
    command = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True))"
    env = {**os.environ, "PYTHONPATH": str(root)}
    return subprocess.run(
        [sys.executable, "-c", command], cwd=root, env=env, capture_output=True, text=True, check=False
    )


def test_every_room_is_listed_in_the_layers(repo):
    """import-linter checks only what it is told of: a new room must be given its place."""
    text = (repo / "pyproject.toml").read_text().split("layers = [")[1].split("]")[0]
    listed = {word.strip(' ,"()') for line in text.splitlines() for word in line.split("|")} - {""}
    rooms = {info.name for info in pkgutil.iter_modules(overlap.__path__)} - {"__main__", "version"}
    assert rooms <= listed, f"no place in [tool.importlinter] for {sorted(rooms - listed)}"


def test_imports_run_one_way(repo):
    """The contracts of pyproject.toml: layers, the compiler half, codegen and the device words."""
    done = lint_imports(repo)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " kept, 0 broken" in done.stdout


def test_a_wrong_import_is_found(repo, tmp_path):
    """The contracts bite: a copy in which chunkplan imports schedule and codegen imports torch is refused."""
    for path in (repo / "overlap").rglob("*.py"):
        copy = tmp_path / path.relative_to(repo)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(path.read_text())
    (tmp_path / "pyproject.toml").write_text((repo / "pyproject.toml").read_text())
    (tmp_path / "overlap/chunkplan/wrong.py").write_text("import overlap.schedule\n")
    (tmp_path / "overlap/codegen/wrong.py").write_text("def f():\n    import torch\n")
    done = lint_imports(tmp_path)
    assert done.returncode == 1
    assert "overlap.chunkplan.wrong -> overlap.schedule" in done.stdout
    assert "overlap.codegen.wrong -> torch" in done.stdout
