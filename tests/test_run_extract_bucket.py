"""Jobs on stores in buckets: the same bytes as in a folder, whatever is killed, refused or broken on the way."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from grace_store.base.errors import SettingError, StorageError, StoreBusy
from grace_store.base.events import Event, UnitCommitted
from grace_store.base.settings import DataSpec
from grace_store.cli import main
from grace_store.run.doctor.data_checks import Seen
from grace_store.run.doctor.machine_checks import examine_place
from grace_store.run.engines.engine import ExtractJob
from grace_store.run.extract import extract
from grace_store.run.plan import plan
from grace_store.run.verify import repair, verify
from grace_store.scoring.score import score
from grace_store.scoring.score_table import read_scores
from grace_store.store.backend import COMPLETIONS, LOCKS, RUNS, commit_key, open_backend
from grace_store.store.lock import hold
from grace_store.store.opened import Store
from grace_store.store.plan_writer import PlanWriter
from tests.jobs import NUM_UNITS, NUM_USABLE, content, make_job, processes
from tests.s3_server import Fault, Proxy, environment, new_bucket, random_faults, s3_server

COMMIT = "ledger/commits/base/"


@pytest.fixture(scope="module")
def s3_port() -> Iterator[int]:
    with s3_server() as port:
        yield port


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished store in a folder, the dataset and the model."""
    folder = tmp_path_factory.mktemp("jobs")
    extract(make_job(folder))
    return folder


@pytest.fixture(scope="module")
def finished(folder: Path) -> dict[str, str]:
    return content(folder / "store.zarr")


@pytest.fixture
def direct(s3_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, s3_port)


@pytest.fixture
def proxy(s3_port: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    with Proxy(s3_port) as proxy:
        use(monkeypatch, proxy.port)
        yield proxy


@pytest.fixture
def job(folder: Path, s3_port: int) -> ExtractJob:
    """The same job as that of the finished store, into a bucket of its own."""
    return replace(make_job(folder), store=f"s3://{new_bucket(s3_port)}/of/store.zarr")


@pytest.fixture(scope="module")
def stored(folder: Path, s3_port: int) -> str:
    """The URL of a finished store that nobody changes."""
    with pytest.MonkeyPatch.context() as patch:
        use(patch, s3_port)
        url = f"s3://{new_bucket(s3_port)}/of/store.zarr"
        extract(replace(make_job(folder), store=url))
        return url


def use(patch: pytest.MonkeyPatch, port: int) -> None:
    for name, value in environment(port).items():
        patch.setenv(name, value)


def objects(url: str) -> dict[str, str]:
    """Return {key: digest} of everything in a bucket's store but the logs of its runs."""
    place = open_backend(url)
    kept = [key for key in place.walk() if not key.startswith(RUNS)]
    values = place.read_all(kept)
    return {key: hashlib.sha256(value or b"").hexdigest() for key, value in zip(kept, values, strict=True)}


def run(*words: object) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words])


# ---------------------------------------------------------------- the same bytes


def test_a_store_in_a_bucket_is_that_of_a_folder_key_by_key(
    stored: str, finished: dict[str, str], direct: None
) -> None:  # fmt: skip
    assert objects(stored) == finished
    assert len(open_backend(stored).names(RUNS)) == 1


def test_a_plan_is_made_anew_with_the_bytes_of_one_in_a_folder(tmp_path: Path, job: ExtractJob, direct: None) -> None:
    plan(job.data, job.store, DataSpec(min_steps=2))
    plan(job.data, job.store, DataSpec(min_steps=3), anew=True)
    plan(job.data, tmp_path / "fresh.zarr", DataSpec(min_steps=3))
    assert objects(job.store) == content(tmp_path / "fresh.zarr")


def test_shards_and_worker_processes_write_the_same(
    job: ExtractJob, finished: dict[str, str], direct: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent.parent))
    extract(replace(job, shard=(0, 2)))
    extract(replace(job, shard=(1, 2), engine=processes("cpu", "cpu")))
    assert objects(job.store) == finished


def test_a_run_that_was_taken_over_stops_before_its_next_unit(job: ExtractJob, direct: None) -> None:
    def take_over(event: Event) -> None:
        if isinstance(event, UnitCommitted):
            theirs = {"host": "another-machine", "pid": 7, "since": "today"}
            open_backend(job.store).write(f"{LOCKS}/base.0-of-1.json", json.dumps(theirs).encode())

    with pytest.raises(StoreBusy, match="taken over by process 7 on another-machine"):
        extract(job, take_over)
    assert len(Store.open(job.store).signal("base").committed_units()) == 1


def test_a_killed_run_is_resumed_to_the_same_bytes(
    job: ExtractJob, finished: dict[str, str], proxy: Proxy, tmp_path: Path
) -> None:
    """SIGKILL at the moment when the third commit is under way: it may have arrived or not."""
    processes: list[subprocess.Popen[bytes]] = []

    def kill(method: str, path: str) -> Fault:
        if method == "PUT" and path.endswith(f"{COMMIT}00000003.json"):
            processes[0].send_signal(signal.SIGKILL)
            return "lost"
        return None

    proxy.fault = kill
    code = (
        "import sys; from dataclasses import replace; from pathlib import Path; from tests.jobs import make_job; "
        "from grace_store.run.extract import extract; "
        "extract(replace(make_job(Path(sys.argv[1])), store=sys.argv[2]))"
    )
    words = [sys.executable, "-c", code, str(Path(job.data[0]).parent), job.store]
    processes.append(subprocess.Popen(words, cwd=Path(__file__).parent.parent))
    assert processes[0].wait(120) == -signal.SIGKILL
    proxy.fault = lambda *_: None
    left = objects(job.store)
    assert f"{LOCKS}/base.0-of-1.json" in left
    assert f"{COMPLETIONS}/base.json" not in left
    extract(job)
    assert objects(job.store) == finished


def test_of_two_runs_at_once_one_is_refused(job: ExtractJob, stored: str, direct: None) -> None:
    place = open_backend(stored)
    withdrawn = commit_key("base", 2)
    before = place.read(withdrawn)
    place.delete(withdrawn)
    with hold(place, "base"), pytest.raises(StoreBusy, match=rf"{stored} is being written by process {os.getpid()}"):
        extract(replace(job, store=stored))
    place.write(withdrawn, before or b"")


def test_damage_is_found_and_mended(job: ExtractJob, finished: dict[str, str], direct: None) -> None:
    extract(job)
    place = open_backend(job.store)
    chunks = ("segment_loss/c/1", "sample_gram/c/2", "segment_vector/c/4/0")
    missing, short, flipped = (f"signals/base/{chunk}" for chunk in chunks)
    place.delete(missing)
    place.write(short, (place.read(short) or b"")[:-1])
    raw = bytearray(place.read(flipped) or b"")
    raw[5] ^= 1
    place.write(flipped, bytes(raw))
    store = Store.open(place)
    assert {problem.where for problem in verify(store, deep=False)} == {missing, short}
    assert {problem.where for problem in verify(store, deep=True)} == {missing, short, flipped}
    repair(job)
    assert objects(job.store) == finished


# ---------------------------------------------------------------- requests


def test_a_unit_takes_one_put_for_each_of_its_objects_and_a_finished_store_little(
    job: ExtractJob, proxy: Proxy
) -> None:
    extract(job)
    key = urlpath(job.store)
    puts = [path.removeprefix(key) for method, path in proxy.requests if method == "PUT"]
    chunks = [path for path in puts if path.startswith("signals/base/") and "/c/" in path]
    commits = [path for path in puts if path.startswith(COMMIT)]
    assert len(set(chunks)) == len(chunks) == 19 * NUM_UNITS
    assert len(set(commits)) == len(commits) == NUM_UNITS
    samples = [path for method, path in proxy.requests if method == "GET" and f"{key}samples/" in path]
    assert len(samples) == len(set(samples)), "a chunk of the plan is read once, not once for each unit"
    proxy.counts()
    extract(replace(job, model=None, data=()))
    assert sum(proxy.counts().values()) < 20
    assert run("status", job.store).exit_code == 0
    assert sum(proxy.counts().values()) < 20


def urlpath(url: str) -> str:
    """Return what comes before a store's keys in the paths of requests."""
    return f"/{url.removeprefix('s3://')}/"


# ---------------------------------------------------------------- everything a user does


def test_scores_are_those_of_the_folder(stored: str, folder: Path, direct: None, tmp_path: Path) -> None:
    tables = []
    for name, store in (("bucket", stored), ("folder", folder / "store.zarr")):
        out = tmp_path / f"{name}.parquet"
        result = run("score", store, "--out", out)
        assert result.exit_code == 0, result.output
        tables.append(read_scores(out))
    assert tables[0].sample_id == tables[1].sample_id
    assert tables[0].value.tolist() == tables[1].value.tolist()
    assert tables[0].note.store == stored
    result = run("select", tmp_path / "bucket.parquet", "--ratio", "0.5", "--out", tmp_path / "subset.jsonl")
    assert result.exit_code == 0, result.output
    assert len((tmp_path / "subset.jsonl").read_text().splitlines()) == NUM_USABLE // 2
    result = run("report", stored, "--scores", tmp_path / "bucket.parquet", "--out", tmp_path / "page.html")
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize(
    "words",
    [
        ["status", "STORE", "--json"],
        ["inspect", "STORE", "case-3", "--json"],
        ["verify", "STORE", "--json"],
        ["sweep", "STORE", "--out", "OUT", "--alpha", "0.3,0.7"],
        ["duplicates", "STORE", "--out", "OUT.parquet"],
        ["inspect", "STORE", "case-3", "--neighbours", "3"],
        ["diversity", "STORE"],
        ["stability", "STORE", "--ratio", "0.5", "--draws", "1"],
    ],
    ids=lambda words: words[0],
)
def test_commands_take_a_url(stored: str, direct: None, tmp_path: Path, words: list[str]) -> None:
    places = {"STORE": stored, "OUT": str(tmp_path / "out"), "OUT.parquet": str(tmp_path / "out.parquet")}
    result = run(*(places.get(word, word) for word in words))
    assert result.exit_code == 0, result.output
    if "--json" in words:
        assert json.loads(result.stdout)


def test_the_doctor_examines_a_bucket(job: ExtractJob, direct: None) -> None:
    asked = ExtractJob(model="", data=(), store=job.store)
    found = examine_place(asked, Seen())
    assert (found.verdict, found.text.partition(" writes")[0]) == ("ok", job.store)
    assert list(open_backend(job.store).walk()) == []
    nowhere = examine_place(replace(asked, store="s3://no-such-bucket/x"), Seen())
    assert nowhere.verdict == "fail"
    assert "There is no bucket s3://no-such-bucket" in nowhere.text


def test_a_url_where_nothing_is_gets_a_sentence(job: ExtractJob, direct: None) -> None:
    result = run("status", job.store)
    assert result.exit_code == 1
    assert f"{job.store} is not a grace-store store: nothing is there" in result.stderr


def test_results_are_not_written_to_a_url(
    stored: str, direct: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run("score", stored, "--out", "s3://bucket/scores.parquet")
    assert result.exit_code == 2
    assert "s3://bucket/scores.parquet is in a bucket, but only stores can be in a bucket" in result.stderr
    with pytest.raises(SettingError, match=r"scores.parquet cannot be written to a bucket"):
        score(stored, out=Path("s3://bucket/scores.parquet"))
    assert list(tmp_path.iterdir()) == []


def test_a_planner_that_was_taken_over_does_not_write_its_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """Two plans, unlike two units, need not be the same."""
    place = open_backend(tmp_path / "store.zarr")
    discard = PlanWriter.discard

    def be_slow(writer: PlanWriter) -> None:
        place.write(f"{LOCKS}/plan.0-of-1.json", b'{"host": "another-machine", "pid": 7}')
        discard(writer)

    monkeypatch.setattr(PlanWriter, "discard", be_slow)
    with pytest.raises(StoreBusy, match=r"lock .*plan.0-of-1.json.* was taken over by process 7 on another-machine"):
        extract(make_job(tmp_path))
    assert place.read("zarr.json") is None


# ---------------------------------------------------------------- storage that breaks


def test_storage_that_fails_now_and_then_changes_nothing(
    job: ExtractJob, finished: dict[str, str], folder: Path, proxy: Proxy, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("GRACE_STORE_REQUEST_SECONDS", "2")
    monkeypatch.setenv("GRACE_STORE_OUTAGE_SECONDS", "60")
    proxy.fault = random_faults(seed=1, share=0.15)
    extract(job)
    result = run("score", job.store, "--out", tmp_path / "scores.parquet")
    assert result.exit_code == 0, result.output
    proxy.fault = lambda *_: None
    assert objects(job.store) == finished
    assert run("score", folder / "store.zarr", "--out", tmp_path / "local.parquet").exit_code == 0
    tables = [read_scores(tmp_path / name) for name in ("scores.parquet", "local.parquet")]
    assert tables[0].value.tolist() == tables[1].value.tolist()


def test_storage_that_stays_away_ends_the_run_with_a_sentence_and_nothing_is_lost(
    job: ExtractJob, finished: dict[str, str], proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRACE_STORE_OUTAGE_SECONDS", "1")
    gone = []

    def go_away(method: str, path: str) -> Fault:
        if path.endswith(f"{COMMIT}00000003.json"):
            gone.append(path)
        return 503 if gone else None

    proxy.fault = go_away
    with pytest.raises(StorageError, match=r"has not answered for .*Everything committed is kept: run the same"):
        extract(job)
    result = run("status", job.store)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "cannot be reached (503 Service Unavailable" in result.stderr
    gone.clear()
    proxy.fault = lambda *_: None
    assert open_backend(job.store).names(COMMIT.rstrip("/")) == [f"{unit:08d}.json" for unit in range(3)]
    extract(job)
    assert objects(job.store) == finished
