"""`overlap.compile` before any launch: what it takes, what it refuses, and what its cache depends on."""

import multiprocessing
import os
import shutil
import sys
import time

import pytest
import triton
import triton.language as tl

import overlap
from overlap.annotate import SourceUnit, annotate, kernel_entry, read_strides
from overlap.api.cache import module_file
from overlap.codegen.module_io import load_module
from overlap.errors import OnError, PlanError, PragmaError, SourceError, UsageError


@pytest.fixture
def template(repo):
    def load(name="grouped_gemm", edit=lambda text: text, folder=None):
        path = repo / "templates" / "kernels" / f"{name}.py"
        if folder is not None:
            copy = folder / f"{name}.py"
            copy.write_text(edit(path.read_text()))
            path = copy
        return load_module(str(path)).matmul_kernel

    return load


def plain(x):
    return x


def use(kernel):
    """Compiles the kernel, as its first launch would."""
    return kernel.operator


@triton.jit
def bare(x_ptr, N, BLOCK: tl.constexpr):
    tl.store(x_ptr + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), 0.0)


def test_used_without_arguments():
    with pytest.raises(UsageError, match=r'(?s)a plan and a tensor.*@overlap.compile\(plan="all_gather_1d"'):
        overlap.compile(bare, "a[M]")


def test_a_plain_function_and_a_compiled_kernel(template):
    fuse = overlap.compile(plan="all_gather_1d", on="a[M]")
    with pytest.raises(UsageError, match="`plain` is not a Triton kernel"):
        fuse(plain)
    with pytest.raises(UsageError, match="compiled already"):
        fuse(fuse(template()))


def test_a_parameter_that_launches_add(template):
    @triton.jit
    def kernel(group, N):
        tl.store(group, N)

    with pytest.raises(UsageError, match="has a parameter `group`"):
        overlap.compile(plan="all_gather_1d", on="a[M]")(kernel)


def test_annotations_that_exist_for_type_checkers_only(template, tmp_path):
    def postponed(text):
        return text.replace("import torch", "from __future__ import annotations\n\nimport torch").replace(
            "a_ptr,\n", "a_ptr: NobodyImportsThis,\n", 1
        )

    kernel = overlap.compile(plan="all_gather_1d", on="a[M]")(template("grouped_gemm", postponed, tmp_path))
    assert use(kernel).tensor == "a_ptr"
    assert "from __future__ import annotations" in kernel.path.read_text()


def test_called_without_a_grid(template):
    with pytest.raises(UsageError, match=r"(?s)called like a function.*matmul_kernel\[grid\]"):
        overlap.compile(plan="all_gather_1d", on="a[M]")(template())(1, 2)


def test_a_backend_and_a_world_that_are_none():
    with pytest.raises(UsageError, match="did you mean 'copy_engine'"):
        overlap.compile(plan="all_gather_1d", on="a[M]", backend="copyengine")
    with pytest.raises(UsageError, match=r"(?s)world='2'.*number of ranks"):
        overlap.compile(plan="all_gather_1d", on="a[M]", world="2")
    with pytest.raises(UsageError, match="is no Realization"):
        overlap.compile(plan="all_gather_1d", on="a[M]", realization="copy_engine")


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        (dict(on="q[M]"), OnError, "no tensor `q`"),
        (dict(on="a[Q]"), OnError, "has no axis Q"),
        (dict(plan="all_gather_1f"), PlanError, "unknown plan"),
        (dict(BLOCK_Q=16), UsageError, "unknown setting 'BLOCK_Q'"),
        (dict(split=0), UsageError, "split must be an integer of at least 1"),
    ],
)
def test_refused_at_the_first_use_with_the_kernels_line(template, options, error, said):
    kernel = overlap.compile(**{"plan": "all_gather_1d", "on": "a[M]", **options})(template())
    with pytest.raises(error, match=said) as caught:
        use(kernel)
    if error is OnError:
        assert caught.value.where.path.endswith("grouped_gemm.py")


def test_a_kernel_without_pragmas():
    with pytest.raises(PragmaError, match="kernel `bare` has no pragmas"):
        use(overlap.compile(plan="all_gather_1d", on="x[N]")(bare))


def test_a_realization_is_pasted(template):
    split = ((1,), (1,), (3, 1))
    chosen = overlap.Realization(split=split, num_warps=8, meta=(("BLOCK_M", 128),))
    assert eval(repr(chosen), {"Realization": overlap.Realization}) == chosen
    by_key = overlap.compile(plan="all_gather_1d", on="a[M]", split=split)(template())
    assert (
        by_key.realization.split
        == overlap.Realization(split=split).with_settings({"split": "1/1/3:1"}, ()).split
        == split
    )
    kernel = overlap.compile(plan="all_gather_1d", on="a[M]", realization=chosen)(template())
    assert kernel.realization == chosen


def test_a_name_that_only_the_enclosing_function_knew(repo, tmp_path):
    """Decorators of a nested kernel may name its locals, as they are when it is decorated."""
    text = (repo / "templates" / "kernels" / "grouped_gemm.py").read_text()
    body = text.split("@triton.jit\n")[1].split("# @overlap.host_entry")[0].rstrip()
    head = (
        "import triton\nimport triton.language as tl\n\n\ndef make(blocks, wrap):\n"
        '    @wrap\n    @triton.autotune(configs=blocks, key=["M"])\n    @triton.jit\n'
    )
    path = tmp_path / "nested.py"
    path.write_text(head + "".join(f"    {line}\n" for line in body.splitlines()) + "    return matmul_kernel\n")
    blocks = [triton.Config({"BLOCK_K": 32})]
    kernel = load_module(str(path)).make(blocks, overlap.compile(plan="all_gather_1d", on="a[M]"))
    assert use(kernel).kernel.configs is blocks
    del kernel.__dict__["operator"], kernel.source.local_names["blocks"]
    with pytest.raises(SourceError, match="use `blocks`"):
        use(kernel)


def test_the_cache_knows_what_matters(tmp_path, cache, template):
    """The same request finds its file; another plan, key, source, helper or function does not."""

    def path(**options):
        edit, name = options.pop("edit", lambda text: text), options.pop("name", "persistent_gemm")
        kernel = template(name, edit, tmp_path)
        return overlap.compile(**{"plan": "all_gather_1d", "on": "a[M]", **options})(kernel).path

    first = path()
    made = first.stat().st_mtime_ns
    assert path() == first and first.stat().st_mtime_ns == made
    others = [
        path(plan="all_gather_1d_push"),
        path(on="b[N]"),
        path(split=2),
        path(world=4),
        path(edit=lambda text: text + "\n# a line\n"),
        path(edit=lambda text: text.replace("tile % num_pid_in_group", "(tile % num_pid_in_group)")),
        path(name="gemm_2d"),
    ]
    assert len({first, *others}) == len(others) + 1
    assert not list(cache.glob("*.part"))


def test_a_helper_of_another_module_is_part_of_the_key(tmp_path, monkeypatch):
    """The kernel's own file stays byte for byte the same."""
    monkeypatch.syspath_prepend(str(tmp_path))
    path = tmp_path / "user.py"
    path.write_text(
        "import triton\nimport triton.language as tl\nfrom helper_of_user import place\n\n\n@triton.jit\n"
        "def k(a, c, M, sm, BM: tl.constexpr):\n"
        "    # @overlap.axis_count M block=BM\n    # @overlap.tile_id\n    t = tl.program_id(0)\n"
        "    # @overlap.dispatch begin\n    # @overlap.pid_map M=i\n    i = place(t)\n    # @overlap.dispatch end\n"
        "    m = i * BM + tl.arange(0, BM)\n    tl.store(c + m, tl.load(a + m * sm, mask=m < M), mask=m < M)\n"
    )
    paths = []
    for body in ("t", "t + 0"):
        helper = tmp_path / "helper_of_user.py"
        helper.write_text(f"import triton\n\n\n@triton.jit\ndef place(t):\n    return {body}\n")
        shutil.rmtree(helper.with_name("__pycache__"), ignore_errors=True)
        sys.modules.pop("helper_of_user", None)
        paths.append(overlap.compile(plan="all_gather_1d", on="a[M]")(load_module(str(path)).k).path)
    assert paths[0] != paths[1]


def _make(folder, start, rank):
    os.environ["OVERLAP_CACHE_DIR"] = folder

    def make():
        with open(os.path.join(folder, "made"), "a") as file:
            file.write(f"{rank}\n")
        time.sleep(0.2)
        return "x = 1\n" * 20000

    start.wait()
    assert module_file("k", ("facts",), make).read_text() == "x = 1\n" * 20000


def test_eight_ranks_at_once_make_one_file(tmp_path):
    context = multiprocessing.get_context("fork")
    start = context.Barrier(8)
    ranks = [context.Process(target=_make, args=(str(tmp_path), start, rank)) for rank in range(8)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(30)
    assert [rank.exitcode for rank in ranks] == [0] * 8
    assert len((tmp_path / "made").read_text().splitlines()) == 1


def test_a_folder_that_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("OVERLAP_CACHE_DIR", str(tmp_path / "file"))
    with pytest.raises(SourceError, match="(?s)cannot write the cache folder.*OVERLAP_CACHE_DIR"):
        module_file("k", (), lambda: "")


@pytest.mark.parametrize(
    ("name", "param", "strides"),
    [
        ("grouped_gemm", "a_ptr", ("stride_am", "stride_ak")),
        ("grouped_gemm", "b_ptr", ("stride_bk", "stride_bn")),
        ("persistent_gemm", "b_ptr", ("stride_bk", "1")),
        ("gemm_2d", "b_ptr", ("stride_bk", "stride_bn")),
    ],
)
def test_strides_are_read_off_the_kernel(repo, name, param, strides):
    """With the host function and without it."""
    text = (repo / "templates" / "kernels" / f"{name}.py").read_text()
    for source in (text, text.replace("# @overlap.host_entry", "# (no host entry)")):
        program = kernel_entry(annotate(SourceUnit.from_text(source)))
        assert read_strides(program, param) == strides
        assert dict((t.name, t.dims) for t in program.host.inputs)[param] == (
            ("M", "K") if param == "a_ptr" else ("K", "N")
        )


RING = "world: 4\npairs:\n  - {for: a in range(world), between: [a, (a + 1) % world], link: nvlink}\n"


def test_a_plan_that_is_made(template, tmp_path):
    """For links and sizes, or chosen for links; another table, other sizes or another machine are another module."""
    links = tmp_path / "ring.yaml"
    links.write_text(RING)
    sizes = {"M": 24, "K": 8}
    given = {"on": "a[M]", "world": 4, "path": "synth"}
    made = overlap.compile("all_gather", links=str(links), sizes=sizes, **given)(template())
    assert use(made).plan.splitlines()[0] == "plan: all_gather_synth" and "a_ptr: [24, 8]" in use(made).plan
    chosen = overlap.compile("all_gather", on="a[M]", world=4, path="template", links=str(links))(template())
    assert "plan: all_gather_ring_both_ways" in use(chosen).plan
    first = made.path
    links.write_text(RING + "  - {between: [0, 2], link: pcie}\n")
    again = overlap.compile("all_gather", links=str(links), sizes=sizes, **given)(template())
    other = overlap.compile("all_gather", links=str(links), sizes={"M": 25, "K": 8}, **given)(template())
    box = overlap.compile("all_gather", sizes=sizes, machine="pcie", **given)(template())
    assert len({first, again.path, other.path, box.path}) == 4 and "machine='pcie'" in box.path.read_text()
    with pytest.raises(UsageError, match="a_ptr has no size for axis K"):
        use(overlap.compile("all_gather", sizes={"M": 24}, **given)(template()))
    with pytest.raises(UsageError, match="is for one world"):
        use(overlap.compile("all_gather", on="a[M]", path="synth", sizes=sizes)(template()))
    with pytest.raises(PlanError, match="unknown path `sinth`"):
        use(overlap.compile("all_gather", on="a[M]", world=4, path="sinth")(template()))
    with pytest.raises(UsageError, match="links without a path"):
        overlap.compile("all_gather_1d", on="a[M]", links=str(links))
    with pytest.raises(UsageError, match="sizes without a path"):
        overlap.compile("all_gather_1d", on="a[M]", sizes=sizes)
