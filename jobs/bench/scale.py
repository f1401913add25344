"""How a store's own work grows with its samples: planned, committed, counted, checked, scored; no model, no data.

    python -m jobs.bench.scale --work /tmp/scale --samples 1000000 3000000 10000000
    python -m jobs.bench.scale --arithmetic

The stores are real ones with tiny vectors (jobs/bench/synthetic_store.py). Every phase runs in a process of its own,
which tells its CPU seconds and peak memory. Requests are what the same calls would be to an object store: a thousand
keys to a listing. The second form prints the arithmetic of SCALE.md instead.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from grace_store.run.engines.engine import ExtractJob
from grace_store.run.extract import extract
from grace_store.run.status import status
from grace_store.run.verify import verify
from grace_store.scoring.score import score
from grace_store.store.backend import LocalBackend
from grace_store.store.opened import Store
from grace_store.store.unit_writer import Totals
from jobs.bench.billion import report as arithmetic
from jobs.bench.findings import Curve, Findings, shown
from jobs.bench.measuring import apart, take
from jobs.bench.synthetic_store import fill_signal, make_plan

SAMPLES = (1_000_000, 3_000_000, 10_000_000)
QUICK_SAMPLES = (400, 800)
NUM_STEPS = 3
MOST_COMPUTED = 3_000_000
"""Samples up to which every unit is computed by itself, about 50 microseconds a sample; beyond, all copy the first."""
KEYS_PER_LISTING = 1000
SIGNAL = "base"


def plan_samples(location: str, num_samples: int) -> None:
    make_plan(Path(location), num_samples, min_steps=NUM_STEPS, max_steps=NUM_STEPS)


def commit_units(location: str, num_samples: int) -> None:
    fill_signal(Store.open(location), SIGNAL, copied=num_samples > MOST_COMPUTED)


def count_finished(location: str, num_samples: int) -> None:
    counts = status(Store.open(location))
    assert (counts.is_complete, counts.num_done) == (True, num_samples)


def count_unfinished(location: str, num_samples: int) -> None:
    """Add up all commits, as status does while a unit is missing."""
    view = Store.open(location).signal(SIGNAL)
    assert Totals(view.commits(view.committed_units())).num_samples == num_samples


def check_sizes(location: str, num_samples: int) -> None:
    assert not list(verify(Store.open(location)))


def extract_nothing(location: str, num_samples: int) -> None:
    extract(ExtractJob(location))


def score_all(location: str, num_samples: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        assert score(location, out=Path(folder) / "scores.parquet", threads=1).num_samples == num_samples


PHASES: dict[str, Callable[[str, int], None]] = {
    "plan": plan_samples,
    "commit all units": commit_units,
    "status, finished": count_finished,
    "status, unfinished": count_unfinished,
    "verify": check_sizes,
    "extract, nothing to do": extract_nothing,
    "score": score_all,
}


def measure(*, quick: bool, threads: int, work: str) -> dict[str, Any]:
    """Measure every phase at every size, as the benchmark's other families do."""
    sizes = QUICK_SAMPLES if quick else SAMPLES
    return findings(sizes, [measured_store(Path(work), num_samples) for num_samples in sizes]).to_json()


def measured_store(work: Path, num_samples: int) -> dict[str, dict[str, Any]]:
    """Make a store of that size and return what each phase took; files and bytes under "store"."""
    location = work / f"scale-{num_samples}.zarr"
    taken = {name: apart(run_phase, name=name, location=str(location), num_samples=num_samples) for name in PHASES}
    sizes = [size for _, size in LocalBackend(location).sizes()]
    return {**taken, "store": {"num_files": len(sizes), "num_bytes": sum(sizes)}}


def run_phase(name: str, location: str, num_samples: int) -> dict[str, Any]:
    """Run a phase and return what it took, and the requests it would make."""
    with counted_requests() as requests:
        cost = take(lambda: PHASES[name](location, num_samples))
    return {**asdict(cost), "requests": dict(requests)}


def findings(sizes: Sequence[int], stores: Sequence[dict[str, dict[str, Any]]]) -> Findings:
    """Return the growth of every cost as curves."""
    costs = {"CPU seconds": "cpu_seconds", "peak MB": "peak_bytes"}
    curves = [
        Curve(
            "Store",
            "samples",
            unit,
            sizes,
            {name: [each[name][key] / (1e6 if key == "peak_bytes" else 1) for each in stores] for name in PHASES},
        )
        for unit, key in costs.items()
    ]
    requests = {name: [sum(each[name]["requests"].values()) for each in stores] for name in PHASES}
    held = {
        "files": [each["store"]["num_files"] for each in stores],
        "MB": [each["store"]["num_bytes"] / 1e6 for each in stores],
    }
    curves.append(Curve("Store", "samples", "requests", sizes, requests))
    curves.append(Curve("Store", "samples", "on disk", sizes, held))
    return Findings(curves=curves)


@contextmanager
def counted_requests() -> Iterator[Counter[str]]:
    """Count what the local backend is asked, by what an object store would call it."""
    requests: Counter[str] = Counter()
    kinds = {"read_slice": "GET", "write": "PUT", "write_new": "PUT", "size": "HEAD", "delete": "DELETE"}
    originals = {name: getattr(LocalBackend, name) for name in (*kinds, "sizes", "walk", "names")}
    quiet = dict(originals)

    def single(name: str) -> Callable[..., Any]:
        @functools.wraps(originals[name])
        def call(self: LocalBackend, *arguments: Any) -> Any:
            requests[kinds[name]] += 1
            return originals[name](self, *arguments)

        return call

    def listing(name: str) -> Callable[..., Any]:
        @functools.wraps(originals[name])
        def call(self: LocalBackend, prefix: str = "") -> Any:
            _replace(quiet)  # a listing of the local backend looks at the files one by one; an object store's does not
            found = list(originals[name](self, prefix))
            _replace(counting)
            requests["LIST"] += max(1, -(-len(found) // KEYS_PER_LISTING))
            return found if name == "names" else iter(found)

        return call

    counting = {name: single(name) if name in kinds else listing(name) for name in originals}
    _replace(counting)
    try:
        yield requests
    finally:
        _replace(originals)


def _replace(methods: dict[str, Callable[..., Any]]) -> None:
    for name, method in methods.items():
        setattr(LocalBackend, name, method)


def table(sizes: Sequence[int], found: Findings) -> str:
    """Return the growth as text: a line for each phase, a column for each size, and the exponent."""
    lines = []
    for curve in found.curves:
        lines.append(f"{curve.unit:<26}" + "".join(f"{size:>14,}" for size in sizes) + f"{'exponent':>10}")
        for name, *costs in curve.rows() if len(sizes) > 1 else _plain_rows(curve):
            lines.append(f"  {name:<24}" + "".join(f"{cost:>14}" for cost in costs[: len(sizes)]) + f"{costs[-1]:>10}")
    return "\n".join(lines) + "\n"


def _plain_rows(curve: Curve) -> list[list[str]]:
    return [[name, *map(shown, costs), ""] for name, costs in curve.lines.items()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, help="where the stores are made; about 200 bytes a sample")
    parser.add_argument("--samples", type=int, nargs="+", default=list(SAMPLES))
    parser.add_argument("--out", type=Path, help="also write the numbers here, as JSON")
    parser.add_argument("--arithmetic", action="store_true", help="print what a billion samples would take instead")
    given = parser.parse_args()
    if given.arithmetic:
        sys.stdout.write(arithmetic())
        return
    with tempfile.TemporaryDirectory() as temporary:
        work = given.work or Path(temporary)
        stores = [measured_store(work, num_samples) for num_samples in given.samples]
    if given.out:
        given.out.write_text(json.dumps(dict(zip(map(str, given.samples), stores, strict=True)), indent=1) + "\n")
    sys.stdout.write(table(given.samples, findings(given.samples, stores)))


if __name__ == "__main__":
    from jobs.bench.scale import main as run  # by its name, by which other processes find the phases

    run()
