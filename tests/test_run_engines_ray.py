"""A Ray cluster of two nodes on this machine: nodes and actors that die or come late, and the same bytes throughout."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from grace_store.base.errors import Interrupted, SettingError, WorkerDied
from grace_store.base.events import Event, Note, UnitCommitted, Warned, ignore
from grace_store.base.settings import RunOptions
from grace_store.choose.duplicate_table import read_duplicates
from grace_store.choose.duplicates import duplicates
from grace_store.cli.main import main
from grace_store.likeness.search_base import IndexPlan
from grace_store.pool.pool import Pool
from grace_store.run.engines import ENGINES
from grace_store.run.engines.engine import EngineOptions, ExtractJob
from grace_store.run.extract import extract, missing_units
from grace_store.scoring.score import score
from grace_store.scoring.sweep import sweep
from grace_store.store.layout import SAMPLES_PER_CHUNK
from grace_store.store.opened import Store
from grace_store.values.grid import SweepSpec
from tests.fake_model import GATE, Gate
from tests.jobs import FIRST_SAMPLES, HELD, NUM_UNITS, TRIED, content, make_job
from tests.planted_stores import planted_store, write_vectors
from tests.stores import write_plan

PATIENCE_SECONDS = 120.0
STARTS = 4
OBJECT_STORE_BYTES = 80 << 20
# A node that is killed is missed soon; one that is slow is left in peace.
HEALTH_CHECKS = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 20_000,
    "health_check_failure_threshold": 3,
}


@dataclass
class Nodes:
    """A cluster whose head has no CPU and all other nodes one."""

    cluster: Any
    gate: Gate
    workers: list[Any] = field(default_factory=list)

    @property
    def address(self) -> str:
        return str(self.cluster.address)

    def add(self) -> str:
        """Start a node and return its id."""
        self.workers.append(started(lambda: self.cluster.add_node(num_cpus=1, **NODE)))
        return str(self.workers[-1].node_id)

    def kill(self) -> str:
        """Kill the processes of the youngest node at once, as a power cut would, and return its id."""
        node = self.workers.pop()
        self.cluster.remove_node(node, allow_graceful=False)
        # Workers notice in their own time that their node is gone, and would go on with their units until then.
        for process in self.gate.processes(node.node_id):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        return str(node.node_id)


NODE = {"object_store_memory": OBJECT_STORE_BYTES, "include_log_monitor": False}


def started(start: Callable[[], Any]) -> Any:
    """Return what is started; Ray gives a node half a minute for that, which a busy machine may not have."""
    for _ in range(STARTS - 1):
        try:
            return start()
        except Exception as error:
            if "timed out during startup" not in str(error):
                raise
    return start()


@pytest.fixture(scope="module")
def nodes(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    gate = Gate(tmp_path_factory.mktemp("gate"))
    with pytest.MonkeyPatch.context() as patch:
        # Before Ray is imported: it listens on the loopback interface alone, and asks for a token.
        patch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_AUTH_MODE", "token")
        patch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
        patch.setenv("PYTHONPATH", str(repository), prepend=os.pathsep)
        patch.setenv(GATE, str(gate.folder))
        import ray
        from ray.cluster_utils import Cluster

        cluster = Cluster()
        try:
            head = {"num_cpus": 0, "include_dashboard": False, "_system_config": HEALTH_CHECKS}
            started(lambda: cluster.add_node(**head, **NODE))
            found = Nodes(cluster, gate)
            found.add()
            yield found
        finally:
            ray.shutdown()  # if a test failed in the middle of a run
            cluster.shutdown()


@pytest.fixture(autouse=True)
def open_gate(nodes: Nodes) -> Iterator[None]:
    yield
    nodes.gate.clear()


@pytest.fixture
def plain(tmp_path: Path) -> dict[str, str]:
    """What the store is when one process writes it."""
    extract(make_job(tmp_path, "plain.zarr"))
    return content(tmp_path / "plain.zarr")


class Running:
    """An extraction on the cluster, on a thread of its own, and what it tells."""

    def __init__(self, job: ExtractJob) -> None:
        self.events: list[Event] = []
        self.stop = threading.Event()
        self.error: BaseException | None = None
        self._job = job
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            extract(self._job, self.events.append, self.stop)
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            self.error = error

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Return when a condition holds; fail if it takes too long or the run ends before."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            assert self._thread.is_alive(), self.error or self.events
            assert time.monotonic() < deadline, self.events
            time.sleep(0.05)

    def finish(self) -> None:
        """Wait for the end; raise what was raised."""
        self._thread.join(PATIENCE_SECONDS)
        assert not self._thread.is_alive(), self.events
        if self.error is not None:
            raise self.error

    def committed(self) -> list[int]:
        return sorted(event.unit for event in self.events if isinstance(event, UnitCommitted))

    def texts(self, kind: type[Note] | type[Warned]) -> list[str]:
        return [event.text for event in self.events if isinstance(event, kind)]


def cluster_job(nodes: Nodes, folder: Path, **changes: Any) -> ExtractJob:
    return make_job(folder, options=RunOptions(device="cpu"), engine=ray_engine(nodes), **changes)


def ray_engine(nodes: Nodes, **options: Any) -> EngineOptions:
    return EngineOptions("ray", address=nodes.address, **options)


def held_on(gate: Gate, node: str) -> set[int]:
    """Return the units that are under way on a node and held there."""
    return {FIRST_SAMPLES.index(sample) for sample in gate.seen(node) if sample in HELD}


def test_a_node_that_joins_later_gets_work_and_one_that_is_killed_loses_only_what_was_under_way(nodes, plain, tmp_path):
    nodes.gate.hold(*HELD)
    run = Running(cluster_job(nodes, tmp_path))
    first = nodes.workers[0].node_id
    run.wait_until(lambda: held_on(nodes.gate, first) == {0})  # 1 and 2 wait behind it
    late = nodes.add()
    # The other units are for the late node: the one that is not held gets done there, the next is held.
    run.wait_until(lambda: run.committed() == [TRIED] and held_on(nodes.gate, late) == {TRIED + 1})
    assert nodes.kill() == late
    run.wait_until(lambda: bool(run.texts(Warned)))
    nodes.gate.let_go()
    run.finish()
    assert content(tmp_path / "store.zarr") == plain
    (warning,) = run.texts(Warned)
    assert "was lost with its machine; units [4, 5] will be redone" in warning
    assert run.committed() == list(range(NUM_UNITS))


def test_a_unit_that_kills_its_actor_is_given_up_in_the_words_of_the_process_engine(nodes, plain, tmp_path):
    nodes.gate.make_deadly(FIRST_SAMPLES[1])
    words = r"Workers died every time they ran units \[1\]; all other units are committed\. .* Run the same command"
    with pytest.raises(WorkerDied, match=words):
        extract(cluster_job(nodes, tmp_path))
    assert missing_units(Store.open(tmp_path / "store.zarr").signal("base")) == [1]
    nodes.gate.clear()
    extract(cluster_job(nodes, tmp_path))
    assert content(tmp_path / "store.zarr") == plain


def test_a_stopped_run_finishes_the_unit_under_way_and_can_be_resumed(nodes, plain, tmp_path):
    nodes.gate.hold(*HELD)
    run = Running(cluster_job(nodes, tmp_path))
    run.wait_until(lambda: held_on(nodes.gate, nodes.workers[0].node_id) == {0})
    run.stop.set()
    nodes.gate.let_go()
    with pytest.raises(Interrupted, match="Run the same command again"):
        run.finish()
    left = len(missing_units(Store.open(tmp_path / "store.zarr").signal("base")))
    assert 0 < left < NUM_UNITS
    extract(cluster_job(nodes, tmp_path))
    assert content(tmp_path / "store.zarr") == plain


def test_a_node_that_does_not_see_the_model_is_named_and_left_out(nodes, tmp_path):
    job = cluster_job(nodes, tmp_path)
    told: list[str] = []

    def take_model_away(event: Event) -> None:
        if isinstance(event, Note) and event.text.startswith("Starting workers"):
            Path(str(job.model)).rename(tmp_path / "elsewhere")
        told.append(getattr(event, "text", ""))

    with pytest.raises(WorkerDied, match=r"No worker is left, and 6 units must still be done.*Every node must see"):
        extract(job, take_model_away)
    node = nodes.workers[0].node_id[:8]
    assert any(f"(node {node}) does not start and is not started again" in text for text in told)


def test_a_cluster_without_the_resources_is_waited_for_as_long_as_one_wants(nodes, tmp_path):
    job = make_job(tmp_path, options=RunOptions(device="cuda"), engine=ray_engine(nodes, wait_seconds=3.0))
    told: list[Event] = []
    with pytest.raises(WorkerDied, match=r"had a free GPU for 0\.05 minutes, and 6 units must still be done"):
        extract(job, told.append)
    assert any("Waiting for a node" in event.text for event in told if isinstance(event, Note))


@pytest.fixture(scope="module")
def large_store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A store of two blocks."""
    num = SAMPLES_PER_CHUNK + 600
    path = tmp_path_factory.mktemp("large") / "large.zarr"
    write_plan(path, [1] * num, 4096)
    store = Store.open(path)
    write_vectors(store, np.random.default_rng(0).normal(size=(num, 2, 8)).astype(np.float32))
    return store


def test_tables_and_sweeps_made_by_tasks_have_the_bytes_of_those_made_here(nodes, large_store, tmp_path, monkeypatch):
    monkeypatch.setattr("grace_store.likeness.search.plan_index", lambda *_, **__: IndexPlan("cells", 8, 3))
    monkeypatch.setattr("grace_store.likeness.search.points_per_task", lambda _: 50)
    planted = planted_store(tmp_path).store
    grid = SweepSpec.parse(grid=[{"alpha": "0.3,0.7", "target": "answer,suffix"}])
    made: dict[str, dict[str, bytes]] = {}
    with ENGINES["ray"].tasks(ray_engine(nodes), None, ignore) as tasks:
        for name, threads in (("here", None), ("there", tasks)):
            folder = tmp_path / name
            folder.mkdir()
            score(large_store, out=folder / "scores.parquet", threads=threads)
            sweep(Pool.of(large_store, threads=threads), grid, out=folder / "sweep")
            duplicates(Pool.of(planted, threads=threads), threshold=0.97).write(folder / "duplicates.parquet")
            files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
            made[name] = {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}
    assert made["here"].keys() >= {"scores.parquet", "duplicates.parquet", "sweep/values.parquet"}
    assert made["here"] == made["there"]
    search = read_duplicates(tmp_path / "there" / "duplicates.parquet").note.search
    assert (search.index, search.recall.share) == ("cells", 1.0)


def test_an_error_of_a_task_is_the_error_it_would_be_here(nodes, tmp_path):
    store = planted_store(tmp_path).store
    chunk = next((tmp_path / "planted.zarr" / "signals").glob("*/sample_gram/c/*"))
    chunk.write_bytes(b"not what was written")
    here = CliRunner().invoke(main, ["score", store.location, "--out", str(tmp_path / "a.parquet")])
    engine = ["--engine", "ray", "--address", nodes.address]
    there = CliRunner().invoke(main, ["score", store.location, "--out", str(tmp_path / "b.parquet"), *engine])
    assert (here.exit_code, there.exit_code) == (1, 1)
    assert here.stderr == there.stderr
    assert "Traceback" not in there.output


def test_the_commands_print_results_alone_on_stdout(nodes, tmp_path):
    store = planted_store(tmp_path).store
    engine = ["--engine", "ray", "--address", nodes.address, "--json"]
    for command in ("score", "duplicates"):
        out = str(tmp_path / f"{command}.parquet")
        done = CliRunner().invoke(main, [command, store.location, "--out", out, *engine], catch_exceptions=False)
        assert (done.exit_code, json.loads(done.stdout)["num_samples"]) == (0, 240), done.stderr


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("127.0.0.1:1", r"Nothing answers at --address 127.0.0.1:1 \(.*refused"),
        ("ray://127.0.0.1:1", "use auto or HOST:PORT"),
        ("somewhere", "use auto or HOST:PORT"),
    ],
)
def test_a_cluster_that_is_not_there_is_a_sentence(nodes, tmp_path, address, sentence):
    engine = EngineOptions("ray", address=address)
    with pytest.raises(SettingError, match=sentence), ENGINES["ray"].tasks(engine, None, ignore):
        pass
