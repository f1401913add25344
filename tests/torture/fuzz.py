"""Fuzz everything that reads what strangers wrote: no hang, no crash, no traceback, memory bounded.

Each target runs in a process of its own, which may take so much memory and, for one input, so much time; an input that
ends it is kept. Without --coverage inputs are seeded mutations, the same on every machine; with it, atheris looks for
inputs that reach new code, and counts cannot be repeated.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import random
import resource
import shutil
import subprocess
import sys
import time
import traceback
from collections import Counter
from pathlib import Path

from tests.torture.tally import Tally, work_folder

MEMORY_BYTES = 6 << 30
"""Address space of a process; far more than any input of a few kilobytes may need."""
SECONDS_PER_CASE = 30.0
"""One input that takes longer hangs."""
FAILURES_KEPT = 5
LAST = "last-input"


def fuzz(seed: int, count: int, folder: Path, *, together: bool = False) -> Tally:
    """Run count inputs, shared among all targets."""
    tallies = run_targets(seed, folder, count=count, together=together)
    total = Tally("inputs fuzzed", sum(each.tried for each in tallies))
    for each in tallies:
        total.became.update(each.became)
        total.failures += [f"{each.name}: {failure}" for failure in each.failures]
    return total


def run_targets(
    seed: int,
    folder: Path,
    *,
    count: int | None = None,
    seconds: float | None = None,
    only: str | None = None,
    coverage: bool = False,
    together: bool = False,
) -> list[Tally]:
    """Run every target for its share of the inputs or of the time; together: in one process, which starts but once."""
    names = [only] if only else target_names()
    limit = ["--count", str(max(1, count // len(names)))] if count else []
    limit += ["--seconds", f"{seconds / len(names):.1f}"] if seconds else []
    tallies: list[Tally] = []
    for group in [names] if together else [[name] for name in names]:
        if coverage:
            from tests.torture.fuzz_coverage import run_covered

            tallies += [run_covered(name, [str(seed), str(_place(folder, name)), *limit], folder) for name in group]
        else:
            tallies += _run_child(group, [str(seed), str(folder), *limit], folder)
    return tallies


def target_names() -> list[str]:
    from tests.torture.fuzz_targets import TARGETS

    return list(TARGETS)


def _place(folder: Path, name: str) -> Path:
    """Return a target's own folder."""
    place = folder / name.replace(" ", "-")
    place.mkdir(parents=True, exist_ok=True)
    return place


def _run_child(names: list[str], words: list[str], folder: Path) -> list[Tally]:
    """Run targets in another process; if it dies, the one it died in has failed."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.torture.fuzz", "--child", ",".join(names), *words],
        capture_output=True,
        text=True,
        check=False,
    )
    tallies = [Tally.from_json(json.loads(line)) for line in done.stdout.splitlines() if line.startswith('{"name"')]
    if done.returncode:
        name = names[min(len(tallies), len(names) - 1)]
        last = _place(folder, name) / LAST
        found = last.read_bytes()[:200] if last.exists() else b""
        failure = f"the process ended with {done.returncode} on {found!r}: {done.stderr[-1500:]}"
        tallies.append(Tally(name, 1, Counter(), {}, [failure]))
    return tallies


def run_child(name: str, seed: int, folder: Path, count: int | None, seconds: float | None) -> Tally:
    """Fuzz one target here, under limits."""
    from grace_store.base.errors import GraceStoreError
    from tests.torture.fuzz_inputs import mutate
    from tests.torture.fuzz_targets import TARGETS

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    target = TARGETS[name]
    rng = random.Random(f"{name} {seed}")
    tally = Tally(name)
    seeds = target.seeds(folder)
    began = time.monotonic()
    while (count is None or tally.tried < count) and (seconds is None or time.monotonic() - began < seconds):
        # Good inputs first: they must be understood, or nothing else is tested.
        data = seeds[tally.tried] if tally.tried < len(seeds) else mutate(rng, seeds)
        (folder / LAST).write_bytes(data)
        faulthandler.dump_traceback_later(SECONDS_PER_CASE, exit=True)
        try:
            tally.became[target.run(data, folder)] += 1
        except GraceStoreError as error:
            tally.became["refused" if str(error) else "refused without a word"] += 1
        except Exception as error:  # noqa: BLE001 - whatever it is, it should not have been raised
            where = traceback.extract_tb(error.__traceback__)[-3:]
            places = " < ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in reversed(where))
            if len(tally.failures) < FAILURES_KEPT:
                tally.failures.append(f"{type(error).__name__}: {str(error)[:300]} at {places} on {data[:300]!r}")
                (folder / f"failed-{len(tally.failures)}").write_bytes(data)
        finally:
            faulthandler.cancel_dump_traceback_later()
        tally.tried += 1
    tally.figures["MB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    return tally


def _main() -> None:
    parser = argparse.ArgumentParser(description="Fuzz everything that reads what strangers wrote.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, help="Inputs in all.")
    parser.add_argument("--seconds", type=float, help="Time in all. [default: 60, if there is no --count]")
    parser.add_argument("--only", help="One target.")
    parser.add_argument("--coverage", action="store_true", help="Guided by coverage, with atheris.")
    parser.add_argument("--keep", type=Path, help="Keep the inputs that failed here.")
    parser.add_argument("--json", type=Path, help="Write the tallies here.")
    words = parser.parse_args()
    seconds = words.seconds or (None if words.count else 60.0)
    folder = work_folder()
    try:
        tallies = run_targets(
            words.seed, folder, count=words.count, seconds=seconds, only=words.only, coverage=words.coverage
        )
        for tally in tallies:
            sys.stdout.write("".join(f"{line}\n" for line in [tally.line(), *(f"  {text}" for text in tally.failures)]))
        num_failed = sum(len(tally.failures) for tally in tallies)
        sys.stdout.write(f"inputs fuzzed: {sum(tally.tried for tally in tallies)}, failed: {num_failed}\n")
        if words.json:
            words.json.write_text(json.dumps([tally.to_json() for tally in tallies], indent=1))
        if words.keep and num_failed:
            shutil.copytree(folder, words.keep, dirs_exist_ok=True, symlinks=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    sys.exit(bool(num_failed))


def _child_main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--child")
    parser.add_argument("seed", type=int)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int)
    parser.add_argument("--seconds", type=float)
    words = parser.parse_args()
    for name in words.child.split(","):
        tally = run_child(name, words.seed, _place(words.folder, name), words.count, words.seconds)
        sys.stdout.write(json.dumps(tally.to_json()) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _child_main() if "--child" in sys.argv else _main()
