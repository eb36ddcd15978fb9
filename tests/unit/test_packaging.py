"""What is imported is declared, what is declared is installed, and what is installed is pinned."""

import ast
import re
import subprocess
import sys

import pytest
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder

# Part of CUDA installations of torch, or of an extra; imported only where a GPU was found. pytest imports its plugin itself.
OPTIONAL = {"cuda", "nvshmem", "pytest"}
DISTRIBUTION = {"yaml": "pyyaml"}


def section(text: str, head: str) -> list[str]:
    """The strings of a TOML list."""
    return re.findall(r'"([^"]+)"', text.split(head)[1].split("]")[0])


@pytest.fixture(scope="module")
def project(repo):
    return (repo / "pyproject.toml").read_text()


@pytest.fixture(scope="module")
def dependencies(project):
    return set(section(project, "\ndependencies = ["))


def test_every_import_is_a_declared_dependency(repo, dependencies):
    missing = {}
    for path in (repo / "overlap").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                modules = [node.module or ""]
            else:
                continue
            for module in modules:
                top = module.partition(".")[0]
                if top not in sys.stdlib_module_names | OPTIONAL | {"overlap"}:
                    if DISTRIBUTION.get(top, top) not in dependencies:
                        missing.setdefault(top, str(path))
    assert missing == {}


def test_make_installs_every_dependency(repo, project, dependencies):
    """The compiler half first, torch and Triton after it; the extras by name."""
    makefile = (repo / "Makefile").read_text()
    for variable, wanted in {
        "HALF": dependencies - {"torch", "triton"},
        "TEST": set(section(project, "\ntest = [")),
        "LINT": set(section(project, "\nlint = [")),
    }.items():
        installed = set(re.search(rf"^{variable} +:= (.*)$", makefile, re.MULTILINE)[1].split())
        assert wanted <= installed, f"Makefile: {variable} lacks {sorted(wanted - installed)}"


def test_the_metadata_pins_nothing(project):
    declared = section(project, "\ndependencies = [") + section(project, "\ntest = [") + section(project, "\nlint = [")
    assert [entry for entry in declared if re.search(r"[<>=~!;@\s]", entry)] == []


@pytest.mark.parametrize("variable", ["HALF", "TEST", "LINT"])
def test_everything_that_make_installs_is_pinned(repo, variable):
    wanted = re.search(rf"^{variable} +:= (.*)$", (repo / "Makefile").read_text(), re.MULTILINE)[1].split()
    pinned = {line.partition("==")[0] for line in (repo / "constraints/common.txt").read_text().splitlines()}
    assert set(wanted) <= pinned


@pytest.mark.parametrize(("file", "version"), [("cpu.txt", "3.6.0"), ("cpu-newest.txt", "3.9.0")])
def test_each_environment_pins_torch_and_its_triton(repo, file, version):
    lines = (repo / "constraints" / file).read_text().splitlines()
    assert f"triton=={version}" in lines and "torch==2.13.0" in lines and "-c common.txt" in lines


@pytest.mark.parametrize("builder", [WheelBuilder, SdistBuilder])
def test_sources_that_are_no_python_are_packed(repo, builder):
    """`overlap.runtime.native` builds them where they are installed."""
    packed = {file.relative_path for file in builder(str(repo)).recurse_included_files()}
    sources = {str(path.relative_to(repo)) for path in (repo / "overlap").rglob("*.c")}
    assert sources and sources <= packed


def test_every_folder_of_templates_goes_into_the_wheel(repo, project):
    included = dict(re.findall(r'^"(templates/\w+)" = "(overlap/templates/\w+)"$', project, re.MULTILINE))
    folders = {f"templates/{path.name}" for path in (repo / "templates").iterdir() if path.is_dir()}
    assert included == {folder: f"overlap/{folder}" for folder in folders - {"templates/__pycache__"}}


def test_the_version_is_the_package_s(repo):
    import overlap

    assert f'__version__ = "{overlap.__version__}"' in (repo / "overlap/version.py").read_text()


def test_pytest_finds_the_fixture_and_pays_nothing_for_it(project):
    """The plugin goes into every pytest of an environment: it must not bring torch and Triton along."""
    (name, module) = re.search(r'\[project.entry-points.pytest11\]\n"([\w.]+)" = "([\w.]+)"', project).groups()
    assert name == module, "one name, or pytest -p would load it twice"
    code = f"import sys, {module} as m; print(m.overlap_sim, sorted({{'torch', 'triton', 'numpy'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "overlap_sim" in done.stdout and done.stdout.rstrip().endswith("[]")
