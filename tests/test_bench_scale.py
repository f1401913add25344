"""How a store grows: what commands ask of the storage, what planning holds in memory, and the page of arithmetic."""

from __future__ import annotations

import json
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest

from grace_store.base.settings import DataSpec
from grace_store.run import scan as understanding
from grace_store.run.plan import plan
from grace_store.run.status import status
from grace_store.run.verify import verify
from grace_store.store import layout
from jobs.bench.billion import (
    MEANING,
    Assumptions,
    Layout,
    phase_requests,
    report,
    sample_flops,
    sample_seconds,
    shared_flops,
)
from jobs.bench.scale import PHASES, findings, run_phase, table
from jobs.bench.synthetic_store import fill_signal, make_plan
from tests.jobs import record

SIZES = (160, 320)
NUM_UNITS = (10, 20)
NUM_CHUNKS_OF_A_UNIT = 19


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scale")


@pytest.fixture(scope="module", autouse=True)
def measured(made: Path) -> list[dict[str, dict]]:
    return [
        {
            **{name: run_phase(name, str(made / f"{size}.zarr"), size) for name in PHASES},
            "store": {"num_files": size, "num_bytes": 10 * size},
        }
        for size in SIZES
    ]


def more_requests(measured: list[dict[str, dict]], phase: str) -> dict[str, int]:
    """Return the requests that ten more units cost a phase."""
    few, many = (each[phase]["requests"] for each in measured)
    return {kind: many[kind] - few.get(kind, 0) for kind in many if many[kind] != few.get(kind, 0)}


def test_a_finished_store_is_counted_without_a_request_for_its_units(measured: list[dict[str, dict]]) -> None:
    assert more_requests(measured, "status, finished") == {}
    assert more_requests(measured, "extract, nothing to do") == {}


def test_an_unfinished_one_takes_a_request_for_each_commit(measured: list[dict[str, dict]]) -> None:
    assert more_requests(measured, "status, unfinished") == {"GET": 10}


def test_verify_takes_sizes_from_a_listing(measured: list[dict[str, dict]]) -> None:
    assert more_requests(measured, "verify") == {"GET": 10}


def test_a_unit_is_written_once_array_by_array(measured: list[dict[str, dict]]) -> None:
    assert more_requests(measured, "commit all units")["PUT"] == 10 * (NUM_CHUNKS_OF_A_UNIT + 1)


def test_score_reads_four_values_of_a_unit(measured: list[dict[str, dict]]) -> None:
    assert more_requests(measured, "score") == {"GET": 40}


@pytest.mark.parametrize("command", [["status"], ["extract"]])
def test_a_finished_store_is_looked_at_without_heavy_libraries(made: Path, command: list[str]) -> None:
    probe = (
        "import sys; from grace_store.cli import main; main(sys.argv[1:], standalone_mode=False);"
        "print([name for name in ('torch', 'transformers', 'pyarrow', 'ray', 'PIL') if name in sys.modules])"
    )
    arguments = [sys.executable, "-c", probe, *command, str(made / f"{SIZES[0]}.zarr")]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_store_of_copied_units_is_sound_too(tmp_path: Path) -> None:
    store = make_plan(tmp_path / "s", 40, min_steps=2, max_steps=2)
    fill_signal(store, "base", copied=True)
    assert list(verify(store, deep=True)) == []
    assert status(store).num_done == 40


def test_growth_is_shown_with_its_exponent(measured: list[dict[str, dict]]) -> None:
    shown = table(SIZES, findings(SIZES, measured))
    files = next(line for line in shown.splitlines() if line.startswith("  files"))
    assert files.split() == ["files", "160", "320", "1.00"]
    assert all(phase in shown for phase in PHASES)
    assert "exponent" in table(SIZES[:1], findings(SIZES[:1], measured[:1]))


def traced_peak(place: Path, num_records: int) -> int:
    data = place / f"{num_records}.jsonl"
    data.write_text("".join(json.dumps({**record(0), "id": f"trace-{i}"}) + "\n" for i in range(num_records)))
    tracemalloc.start()
    try:
        plan([data], place / f"{num_records}.zarr", DataSpec(min_steps=2))
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_planning_holds_a_few_bytes_a_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """17 of them; a set of ids and a few columns of 64-bit numbers would be some 200."""
    monkeypatch.setattr(understanding, "RECORDS_PER_BLOCK", 256)
    monkeypatch.setattr(layout, "SAMPLES_PER_CHUNK", 512)
    traced_peak(tmp_path, 600)  # what is made once and kept
    few, many = 2_000, 10_000
    assert (traced_peak(tmp_path, many) - traced_peak(tmp_path, few)) / (many - few) < 64


def test_the_page_holds_what_the_arithmetic_says(repository: Path) -> None:
    page = (repository / "jobs/bench/SCALE.md").read_text()
    assert report() in page


def test_the_arithmetic_follows_its_assumptions() -> None:
    given = Assumptions()
    assert set(MEANING) == set(Assumptions.__slots__)
    # By hand: 10 vectors of 2048 bytes, their scales of 4, spans of 8, seven numbers of 4; 55 of a Gram; a state; 500
    # tokens of 12 bytes, their number and the top entropy.
    assert Layout(given).chunk_bytes("int8") == {
        "segment_vector": 4096 * 10 * 2048,
        "segment_scale": 4096 * 10 * 4,
        "segment_span": 4096 * 10 * 8,
        "segment_num_tokens": 4096 * 10 * 4,
        "segment_loss": 4096 * 10 * 4,
        "segment_entropy": 4096 * 10 * 4,
        "segment_hit_rate": 4096 * 10 * 4,
        "segment_rank": 4096 * 10 * 4,
        "segment_first_loss": 4096 * 10 * 4,
        "segment_error": 4096 * 10 * 4,
        "sample_gram": 4096 * 55 * 4,
        "sample_state": 4096,
        "sample_top_entropy": 4096 * 4,
        "sample_num_token_rows": 4096 * 4,
        "token_log_probability": 4096 * 500 * 4,
        **{f"token_{name}": 4096 * 500 * 2 for name in ("rank", "entropy", "error", "num_characters")},
    }
    # A question of one trace shares nothing.
    assert shared_flops(Assumptions(traces=1)) == pytest.approx(sum(sample_flops(given).values()))
    assert shared_flops(given) < shared_flops(Assumptions(traces=4))
    assert sample_seconds(given) == pytest.approx(2 * sample_seconds(Assumptions(utilisation=0.8)))
    small = phase_requests(Assumptions(num_samples=4096 * 1024))
    assert small["verify"][1].gets == 1024
    # Of 80 MiB of vectors: three parts, one request to begin and one to end; then 18 chunks and the commit.
    assert small["extract"][1].puts == 1024 * (3 + 2 + 18 + 1)
