"""Where tuned results stand: keys, the cache's files, `overlap.lock`, shipped defaults, and which of them counts."""

from __future__ import annotations

import json
import logging
import multiprocessing
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from overlap.api.tuned_kernel import options_of
from overlap.autotune import cache, lookup
from overlap.autotune.config import Config
from overlap.autotune.entry import Entry
from overlap.autotune.key import Key, bucket
from overlap.autotune.lock import changes, lock_path, read_lock, write_lock
from overlap.autotune.log import agreement, log_of, read_log, spearman
from overlap.autotune.search import Outcome, Trial
from overlap.autotune.shipped import defaults, files, read_defaults, shipped
from overlap.backends.base import Realization
from overlap.chunkplan.cuts import split_text
from overlap.cli.main import cli
from overlap.errors import OverlapError, UsageError

KEY = Key(
    "ag_gemm",
    (("M", 8192), ("N", 28672), ("K", 8192)),
    "bf16",
    4,
    "NVIDIA H100 80GB HBM3",
    source="0123",
    versions=(("overlap", "0.1.0"), ("torch", "2.13"), ("triton", "3.6.0")),
)
CONFIG = Config(
    Realization("ldst_reserved", 2, 16, 8, 3, meta=(("BLOCK_M", 128), ("GROUP_M", 4))), "all_gather_1d_push"
)
ENTRY = Entry(KEY, CONFIG, 1.25, "2026-11-28", 31)


@pytest.fixture(autouse=True)
def nowhere(tmp_path, monkeypatch):
    """An empty cache, and a working directory without a lock."""
    monkeypatch.setenv("OVERLAP_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("OVERLAP_LOCK", raising=False)
    (tmp_path / "work" / "deep").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "work" / "deep")
    return tmp_path


def test_sizes_share_buckets_with_their_neighbours():
    assert [bucket(n) for n in (0, 1, 3, 4, 5, 6, 7, 8, 8191, 8192, 8193, 14336, 29568)] == [
        0, 1, 3, 4, 6, 6, 8, 8, 8192, 8192, 12288, 16384, 32768,
    ]  # fmt: skip
    assert all(n <= bucket(n) < 1.5 * n for n in range(2, 5000))
    near = replace(KEY, sizes=(("M", 8000), ("N", 27000), ("K", 8192)))
    assert near.digest == KEY.digest and replace(KEY, sizes=(("M", 4096), *KEY.sizes[1:])).digest != KEY.digest


@pytest.mark.parametrize(
    "change",
    [
        {"operator": "gemm_rs"}, {"dtype": "fp16"}, {"world": 8}, {"device": "NVIDIA H200"}, {"mesh": "2x2"}, {"on": "a[M]"},
        {"plan": "ff"}, {"source": "4567"}, {"versions": (("triton", "3.9.0"),)},
    ],
)  # fmt: skip
def test_every_part_of_a_key_counts(change):
    cache.write(ENTRY)
    assert cache.read(replace(KEY, **change)) is None and cache.read(KEY) == ENTRY


def test_an_entry_survives_its_file():
    path = cache.write(ENTRY)
    assert json.loads(path.read_text())["config"]["meta"] == {"BLOCK_M": 128, "GROUP_M": 4}
    assert cache.read(KEY) == ENTRY
    serial = replace(ENTRY, config=Config(Realization("serial")))
    cache.write(serial)
    assert cache.read(KEY) == serial and [entry for _, entry in cache.entries()] == [serial]
    assert not list(path.parent.glob("*.part"))


@pytest.mark.parametrize(("split", "said"), [(1, None), (4, 4), ((1, 3), "1:3"), (((1,), (1,), (3, 1)), "1/1/3:1")])
def test_a_config_with_unequal_pieces_survives_its_file(split, said):
    config = Config(Realization(split=split), "all_gather_1d")
    told = json.loads(json.dumps(config.to_json()))
    assert told.get("split") == said and Config.from_json(told) == config
    with pytest.raises(UsageError, match="1 or more"):
        Config.from_json({**told, "split": "1:0"})


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "[]", '"x"', '{"overlap tuned": 2}', '{"overlap tuned": 1}', "\xff\xfe", "[" * 100_000,
        json.dumps({"overlap tuned": 1, **ENTRY.to_json(), "config": {"backend": "warp_drive"}}),
        json.dumps({"overlap tuned": 1, **ENTRY.to_json(), "config": {"backend": "copy_engine", "split": 0}}),
        json.dumps({"overlap tuned": 1, **ENTRY.to_json(), "config": {"backend": "copy_engine", "meta": {"A": "b"}}}),
        json.dumps({"overlap tuned": 1, **replace(ENTRY, key=replace(KEY, world=2)).to_json()}),
    ],
)  # fmt: skip
def test_a_broken_or_foreign_file_is_told_of_and_set_aside(text, caplog):
    path = cache.path_of(KEY)
    path.parent.mkdir(parents=True)
    path.write_bytes(text.encode("latin-1"))
    with caplog.at_level(logging.WARNING, "overlap"):
        assert cache.read(KEY) is None
    assert path.name in caplog.text and "set aside" in caplog.text
    assert not path.exists() and path.with_name(path.name + ".bad").read_bytes() == text.encode("latin-1")
    cache.write(ENTRY)
    assert cache.read(KEY) == ENTRY


def _write_many(number: int) -> None:
    for i in range(40):
        cache.write(replace(ENTRY, ms=float(number * 1000 + i)))


def test_writers_at_the_same_time_leave_whole_files(caplog):
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_write_many, args=(number,)) for number in (1, 2, 3)]
    for writer in writers:
        writer.start()
    seen = set()
    while any(writer.is_alive() for writer in writers):
        found = cache.read(KEY)
        seen.add(found.ms if found else None)
    assert all(writer.exitcode == 0 for writer in writers) and not caplog.text
    assert cache.read(KEY).ms in {1039.0, 2039.0, 3039.0} and len(seen) > 1


def test_a_folder_that_cannot_be_written_is_named(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("OVERLAP_CACHE_DIR", str(tmp_path / "file" / "below"))
    assert cache.read(KEY) is None
    with pytest.raises(UsageError, match="cannot be written"):
        cache.write(ENTRY)


def test_a_lock_is_found_upward_and_beats_cache_and_defaults(tmp_path, monkeypatch):
    found = lookup.find(KEY)
    assert found.source == lookup.SHIPPED and found.entry == shipped(KEY)
    cache.write(ENTRY)
    assert lookup.find(KEY) == lookup.Found(ENTRY, lookup.CACHE)
    path = tmp_path / "work" / "overlap.lock"
    pin = replace(ENTRY, config=Config(Realization("copy_engine", split=8)))
    write_lock(path, [pin])
    assert lock_path() == path and lookup.find(KEY) == lookup.Found(pin, f"lock {path}")
    # Whatever kernel and versions: only the problem counts.
    later = replace(KEY, source="89", versions=(("triton", "3.9.0"),), sizes=(("M", 8001), ("N", 28672), ("K", 8192)))
    assert lookup.find(later).entry == pin
    assert lookup.find(replace(later, world=8)) is None
    other = tmp_path / "other.lock"
    write_lock(other, [])
    monkeypatch.setenv("OVERLAP_LOCK", str(other))
    assert lookup.find(KEY).source == lookup.CACHE
    monkeypatch.setenv("OVERLAP_LOCK", str(tmp_path / "none.lock"))
    with pytest.raises(UsageError, match=r"none\.lock is no file"):
        lookup.find(KEY)


def test_pins_of_other_problems_stay(tmp_path):
    path = tmp_path / "overlap.lock"
    other = replace(ENTRY, key=replace(KEY, operator="gemm_rs"))
    write_lock(path, [ENTRY])
    write_lock(path, [other])
    assert set(read_lock(path)) == {ENTRY, other}
    write_lock(path, [replace(ENTRY, ms=1.0)])
    assert set(read_lock(path)) == {replace(ENTRY, ms=1.0), other}
    assert [p.name for p in tmp_path.glob("overlap.lock*")] == ["overlap.lock"], "nothing beside a file of the user's"


def test_mistakes_in_a_lock_have_their_place(tmp_path):
    path = tmp_path / "overlap.lock"
    write_lock(path, [ENTRY, replace(ENTRY, key=replace(KEY, operator="gemm_rs"))])
    text = path.read_text()
    for wrong, message, line in (
        (text.replace('"split": 2', '"split": "2"', 1), "split='2'", None),
        (text.replace('"ldst_reserved"', '"ldst"'), "no backend 'ldst'", None),
        (text.replace('"world": 4', '"world": 0'), "world", None),
        (text.replace('"operator": "ag_gemm",', ""), "operator", None),
        (text[:-20], "no JSON", None),
        ("{}", "a lock begins with", 1),
        ("", "no JSON", 1),
    ):
        path.write_text(wrong)
        with pytest.raises(UsageError) as caught:
            read_lock(path)
        assert message in caught.value.message and caught.value.where.path == str(path)
        assert caught.value.where.line == line or line is None and caught.value.where.line > 1, wrong
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="UTF-8"):
        read_lock(path)


def test_a_diff_says_what_an_upgrade_would_change():
    here = {"overlap": "0.1.0", "torch": "2.13", "triton": "3.9.0"}
    now = replace(ENTRY, key=replace(KEY, versions=tuple(here.items())), config=Config(Realization("serial")), ms=1.0)
    (change,) = changes([ENTRY], [ENTRY, now], here)
    assert change.differs and change.now == now and change.moved == ("triton 3.6.0 -> 3.9.0",)
    (change,) = changes([ENTRY], [ENTRY], here)
    assert change.now is None and not change.differs
    (change,) = changes([ENTRY], [replace(ENTRY, key=replace(KEY, source="new"))], dict(KEY.versions))
    assert not change.differs and change.moved == ("the kernel's text",)
    assert changes([ENTRY], [], here, device="NVIDIA H200") == ()


def test_shipped_defaults_are_what_was_measured(repo):
    """Each entry is the fastest way of its shape, with the host ahead where that was measured, and no two are for one problem."""
    assert {path.stem for path in files()} == {"h100", "h200"}
    assert len({entry.key.problem for entry in defaults()}) == len(defaults()) > 15
    measured = [
        (path.relative_to(repo).as_posix(), row)
        for folder in ("splits", "sums", "ways")
        for path in (repo / "bench" / "results" / folder).glob("*.json")
        for row in json.loads(path.read_text())["rows"]
        if row["ms"] is not None
        if not {"OVERLAP_STORE_SUMS=0", "OVERLAP_IN_PLACE=0"} & set(row["how"].split(","))
    ]
    for entry in defaults():
        rows = [
            (name, row)
            for name, row in measured
            if (row["op"], row["world"], row["dtype"]) == (entry.key.operator, entry.key.world, entry.key.dtype)
            and all(row[axis] == size for axis, size in entry.key.sizes)
            and entry.key.device in row["device"].split()
        ]
        kind = "queued" if any(row.get("queued") is not None for _, row in rows) else "ms"
        times = [(row[kind], row["how"], name) for name, row in rows if row.get(kind) is not None]
        name = entry.cite.split(", ")[0]
        how = entry.cite[len(name) + 2 : entry.cite.rindex(", commit")]
        assert (entry.ms, how, name) == min(times) and len(times) == entry.tried
        assert f"split={split_text(entry.config.realization.split)}" in how or "split" not in how
        assert f"OVERLAP_SUM_SMS={entry.config.realization.sum_sms}" in how or "SUM_SMS" not in how
    assert shipped(replace(KEY, device="NVIDIA GH200 480GB")) is None and shipped(KEY) is not None


@pytest.mark.parametrize("asked", [None, 0, 1])
def test_a_pin_says_whether_tiles_add(tmp_path, asked):
    """Or nothing, which leaves it to the setting; a kernel is compiled as it says."""
    config = Config(Realization(split=2, sum_sms=0, tile_sums=asked), "reduce_scatter_1d")
    pinned, path = replace(ENTRY, config=config), tmp_path / "overlap.lock"
    write_lock(path, [pinned])
    told = config.to_json()
    assert (
        read_lock(path)[0].config == config
        and told.get("tile_sums") == asked
        and ("tile_sums" in told) == (asked is not None)
    )
    assert options_of(config).get("tile_sums") == (None if asked is None else str(asked))
    with pytest.raises(UsageError, match="tile_sums=2"):
        Config.from_json({**told, "tile_sums": 2})


def test_defaults_in_another_form_are_refused(tmp_path):
    path = tmp_path / "x.json"
    path.write_text("{}")
    with pytest.raises(UsageError, match="defaults begin"):
        read_defaults(path)


def run(*words: str) -> str:
    result = CliRunner().invoke(cli, ["cache", *words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_the_cache_on_the_command_line(tmp_path):
    assert "nothing tuned" in run("list")
    other = replace(ENTRY, key=replace(KEY, operator="gemm_rs", device="NVIDIA H200"))
    cache.write(ENTRY)
    cache.write(other)
    shown = run("list")
    assert "ag_gemm M=8192,N=28672,K=8192 bf16" in shown and str(CONFIG) in shown and "2 in " in shown
    assert "gemm_rs" not in run("list", "--device", "h100") and "1 in" in run("list", "--op", "gemm_rs", "--world", "4")
    lock = tmp_path / "work" / "overlap.lock"
    write_lock(lock, [ENTRY])
    assert "not tuned for these versions" in run("diff")
    assert "1 removed" in run("clear", "--op", "ag_gemm") and [e for _, e in cache.entries()] == [other]
    assert "1 removed" in run("clear")
    write_lock(lock.with_name("empty.lock"), [])
    assert "pins nothing" in run("diff", "--lock", str(lock.with_name("empty.lock")))


def test_rank_correlation():
    assert spearman([1, 2, 3, 4], [10, 20, 30, 40]) == pytest.approx(1)
    assert spearman([1, 2, 3, 4], [4, 3, 2, 1]) == pytest.approx(-1)
    # By hand: ranks 1, 2.5, 2.5, 4 against 1, 2, 3, 4.
    assert spearman([1, 5, 5, 9], [1, 2, 3, 4]) == pytest.approx(4.5 / (4.5 * 5) ** 0.5)
    assert spearman([1, 1, 1], [1, 2, 3]) is None and spearman([1, 2], [1, 2]) is None


def test_a_log_says_how_well_the_model_did(tmp_path):
    trials = []
    for number in range(8):
        trials.append(Trial(Config(Realization(split=number + 1)), [(5, 9.0), (20, 10.0 + number)]))
    trials[7].times[-1] = (20, 8.0)
    trials.append(Trial(Config(Realization("serial")), failed="rank 2: no"))
    outcome = Outcome(trials[7], tuple(trials), 12.5, 3)
    predicted = {trial.config: 1e-3 * (number + 1) for number, trial in enumerate(trials[:8])}
    log = log_of(KEY, outcome, machine="h100-nvlink", predicted=predicted, refused={"too big": 2}, budget=60)
    path = tmp_path / "log.json"
    path.write_text(json.dumps(log))
    found = agreement(read_log(path))
    assert (found.count, found.best, found.best_of_top) == (8, 8.0, 10.0) and found.behind == pytest.approx(0.25)
    assert found.spearman == pytest.approx(spearman(range(8), [1, 2, 3, 4, 5, 6, 7, 0]))
    shown = CliRunner().invoke(cli, ["tune", "--compare", str(path)])
    assert "rank correlation 0.333" in shown.output and "25.0 % behind" in shown.output
    for text in ("", "{}", json.dumps({**log, "trials": [{"times": [[1]]}]}), json.dumps({**log, "trials": [3]})):
        path.write_text(text)
        with pytest.raises(OverlapError):
            read_log(path)
    with pytest.raises(UsageError, match="cannot be read"):
        read_log(Path("none.json"))
