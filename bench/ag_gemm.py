"""AllGather-GEMM: every way of computing ``gather(a) @ b`` on the same GPUs, in the same processes.

    python -m torch.distributed.run --nproc-per-node 4 bench/ag_gemm.py
    python -m torch.distributed.run --nproc-per-node 4 --max-restarts 3 bench/ag_gemm.py --rounds 40

``a`` is [M, K], each rank holding M / world rows; ``b`` is [K, N], each rank holding N / world columns. ``gemm`` and
``triton_gemm`` have all of ``a`` and compute a rank's product alone; ``nccl`` moves the data alone. Everything else
starts from the shard in ordinary memory, so staging is included.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import record
import torch
import torch.distributed as dist
from common import DTYPES, Contender, Session, Unavailable, Watchdog, build, check, graph_of, measure

OP = "ag_gemm"
SHAPES = (
    "8192,6144,4096",
    "8192,14336,4096",
    "8192,8192,8192",
    "8192,28672,8192",
    "8192,29568,8192",
    "8192,53248,16384",
    "2048,14336,4096",
    "512,28672,8192",
    "64,28672,8192",
    "16,14336,4096",
)
KERNEL = record.ROOT / "templates" / "kernels" / "persistent_gemm.py"
CAPTURES = {"serial_graph": "serial", "ours_graph": "ours"}
"""What each graph captures."""
META = {"BLOCK_M": 128, "BLOCK_N": 256, "BLOCK_K": 64, "GROUP_M": 8, "num_warps": 8, "num_stages": 3}


@dataclass
class Problem:
    """One shape on this rank: global M, N, K; ``a`` whole (for checks and the contenders that gather nothing), the own
    rows ``shard``, the own columns ``b``, and memory for results."""

    session: Session
    M: int
    N: int
    K: int
    dtype: torch.dtype

    def __post_init__(self) -> None:
        session = self.session
        make = partial(torch.empty, dtype=self.dtype, device=session.device)
        self.a = make(self.M, self.K)
        self.shard = make(self.M // session.world, self.K)
        self.b = make(self.K, self.N // session.world)
        self.c = make(self.M, self.N // session.world)
        self.gathered = make(self.M, self.K)
        self.fill(0)

    def fill(self, seed: int) -> None:
        """New random data in the same tensors: ``a`` the same on all ranks, ``b`` of each rank's own."""
        session = self.session
        generator = torch.Generator(session.device)
        self.a.normal_(generator=generator.manual_seed(seed))
        self.shard.copy_(self.a.chunk(session.world)[session.rank] if self.M else self.a)
        self.b.normal_(generator=generator.manual_seed(1_000_003 * (session.rank + 1) + seed))
        session.synchronize()

    def expected(self) -> dict[str, torch.Tensor]:
        return {"product": self.a.float() @ self.b.float(), "gather": self.a}


def gemm(p: Problem, built: dict[str, Contender]) -> Contender:
    return Contender("gemm", lambda: torch.matmul(p.a, p.b, out=p.c))


def nccl(p: Problem, built: dict[str, Contender]) -> Contender:
    return Contender("nccl", lambda: _gather(p), expected="gather")


def _gather(p: Problem) -> torch.Tensor:
    # One collective under its new name and its old one.
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    gather(p.gathered, p.shard)
    return p.gathered


def serial(p: Problem, built: dict[str, Contender]) -> Contender:
    return Contender("serial", lambda: torch.matmul(_gather(p), p.b, out=p.c), scratch=(p.gathered,))


def asynctp(p: Problem, built: dict[str, Contender]) -> Contender:
    need_gpu(p)
    import torch.distributed._symmetric_memory as symmetric

    name = dist.group.WORLD.group_name
    symmetric.enable_symm_mem_for_group(name)

    def call() -> torch.Tensor:
        _, (result,) = torch.ops.symm_mem.fused_all_gather_matmul(p.shard, [p.b], gather_dim=0, group_name=name)
        return result

    return Contender("asynctp", call)


class _WithMeta:
    """Stands where a host function names its kernel: launches it with other constants."""

    def __init__(self, kernel: Any, meta: dict[str, int]) -> None:
        self._kernel, self._meta = kernel, meta

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        return lambda *args, **kwargs: self._kernel[grid](*args, **{**kwargs, **self._meta})


class Compiled:
    """The template kernel as it stands and compiled for the plan, both with the same constants."""

    def __init__(self, folder: Path, plan: str, settings: dict[str, int]) -> None:
        from overlap.annotate.source import SourceUnit
        from overlap.codegen.module_io import load_module
        from overlap.pipeline import Request, compile_source

        texts = {name: str(value) for name, value in settings.items()}
        made = compile_source(Request(SourceUnit.from_file(str(KERNEL)), plan=plan, on="a[M]", settings=texts))
        assert made.program.host is not None
        path = folder / f"{OP}_module.py"
        path.write_text(made.module.text, encoding="utf-8")
        host, kernel = made.program.host.name, made.program.kernel.name
        self.fused = getattr(load_module(str(path), search=(str(KERNEL.parent),)), host)
        original = load_module(str(KERNEL))
        how = made.realization
        options = {"num_warps": how.num_warps, "num_stages": how.num_stages}
        meta = dict(how.meta) | {name: value for name, value in options.items() if value is not None}
        setattr(original, kernel, _WithMeta(getattr(original, kernel), meta))
        self.original = getattr(original, host)


def triton_gemm(p: Problem, built: dict[str, Contender], compiled: Compiled) -> Contender:
    need_gpu(p)
    return Contender("triton_gemm", lambda: compiled.original(p.a, p.b))


def ours(p: Problem, built: dict[str, Contender], compiled: Compiled) -> Contender:
    need_gpu(p)
    return Contender("ours", lambda: compiled.fused(p.shard, p.b, out=p.c))


def in_graph(p: Problem, built: dict[str, Contender], name: str) -> Contender:
    if CAPTURES[name] not in built:
        raise Unavailable(f"needs {CAPTURES[name]}")
    return graph_of(p.session, built[CAPTURES[name]], name)


def need_gpu(p: Problem) -> None:
    if not p.session.cuda:
        raise Unavailable("needs a GPU")


def contenders(p: Problem, compiled: Compiled | None) -> dict[str, Callable[[dict[str, Contender]], Contender]]:
    """Every contender's builder, by name; a graph comes behind what it captures."""

    def with_module(builder: Callable[..., Contender]) -> Callable[[dict[str, Contender]], Contender]:
        def built_from(built: dict[str, Contender]) -> Contender:
            if compiled is None:
                raise Unavailable("needs a GPU")
            return builder(p, built, compiled)

        return built_from

    return {
        "gemm": partial(gemm, p),
        "triton_gemm": with_module(triton_gemm),
        "nccl": partial(nccl, p),
        "serial": partial(serial, p),
        "serial_graph": partial(in_graph, p, name="serial_graph"),
        "asynctp": partial(asynctp, p),
        "ours": with_module(ours),
        "ours_graph": partial(in_graph, p, name="ours_graph"),
    }


def run_shape(
    p: Problem, watchdog: Watchdog, compiled: Compiled | None, wanted: list[str], *, rounds: int
) -> tuple[dict[str, float], list[str]]:
    """Builds, checks on fresh data and times the contenders of one shape.

    Returns:
        milliseconds by contender, and the contenders whose results are wrong, which are not timed.
    """
    needed = {*wanted, *(CAPTURES[name] for name in wanted if name in CAPTURES)}
    builders = {name: builder for name, builder in contenders(p, compiled).items() if name in needed}
    built = build(p.session, watchdog, builders)
    p.fill(1)
    timed = {name: contender for name, contender in built.items() if name in wanted}
    wrong = check(p.session, watchdog, timed, p.expected())
    right = {name: contender for name, contender in timed.items() if name not in wrong}
    return measure(p.session, watchdog, right, rounds=rounds, seed=p.M + p.N + p.K), wrong


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", type=shape, default=[shape(s) for s in SHAPES], metavar="M,N,K")
    parser.add_argument("--dtype", choices=DTYPES, default="bf16")
    parser.add_argument("--rounds", type=int, default=30, help="published numbers need 20 or more")
    parser.add_argument("--contenders", nargs="+", choices=record.CONTENDERS, default=list(record.CONTENDERS))
    parser.add_argument("--plan", default="all_gather_1d", help="plan of the fused kernel")
    parser.add_argument("--set", nargs="+", type=setting, default=[], metavar="KEY=VALUE", help="realization of it")
    parser.add_argument("--out", type=Path, help="result file; default: bench/results, by operator and GPUs")
    parser.add_argument("--commit", help="the commit measured, where there is no git")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: rehearsal of this script")
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error("--rounds must be at least 1")
    if options.device == "cpu" and options.out is None:
        parser.error("--device cpu needs --out: its numbers mean nothing")
    return options


def shape(text: str) -> tuple[int, int, int]:
    """``M,N,K``."""
    try:
        m, n, k = (int(word) for word in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not M,N,K") from None
    if min(m, n, k) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: sizes start at 1")
    return m, n, k


def setting(text: str) -> tuple[str, int]:
    """``KEY=VALUE``."""
    name, equals, value = text.partition("=")
    if not equals or not value.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE with a whole number")
    return name, int(value)


def main() -> None:
    options = arguments()
    session = Session(options.device)
    path = options.out or record.default_path(OP, session.name, session.world)
    journal = record.Journal(path.with_name(path.name + ".part"), session.rank)
    watchdog = Watchdog(journal.failed)
    wanted = [name for name in options.contenders if name not in journal.left_out]
    for name, why in journal.left_out.items():
        session.say(f"{name} left out: {why}")
    wrong: list[str] = []
    folder = Path(tempfile.mkdtemp(prefix="overlap-bench-"))
    try:
        compiled = Compiled(folder, options.plan, META | dict(options.set)) if session.cuda else None
        if session.cuda:
            journal.clocks.append(record.clocks("start"))
        for m, n, k in options.shapes:
            if m % session.world or n % session.world:
                session.say(f"{m},{n},{k} left out: M and N must be multiples of {session.world} here")
            elif not journal.done(M=m, N=n, K=k):
                session.say(f"{m},{n},{k}")
                problem = Problem(session, m, n, k, DTYPES[options.dtype])
                times, bad = run_shape(problem, watchdog, compiled, wanted, rounds=options.rounds)
                wrong += bad
                if session.cuda:
                    journal.clocks.append(record.clocks(f"after {m},{n},{k}"))
                common = {"op": OP, "M": m, "N": n, "K": k, "world": session.world, "dtype": options.dtype}
                for name, ms in times.items():
                    session.say(f"  {name:<14}{ms:9.4f} ms")
                    journal.rows.append({**common, "contender": name, "ms": round(ms, 5), "device": session.name})
                if session.rank == 0:
                    journal.save()
                del problem
                session.free()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if session.rank == 0:
        values = (
            record.hardware(session.world),
            record.versions(),
            journal.clocks,
            options.commit or record.commit(),
            record.command(session.world),
            record.now(),
            journal.rows,
        )
        record.write(path, dict(zip(record.KEYS, values, strict=True)))
        journal.finish()
        session.say(f"written: {path}")
    session.close()
    if wrong:
        sys.exit(f"wrong results: {', '.join(sorted(set(wrong)))}")


if __name__ == "__main__":
    main()
