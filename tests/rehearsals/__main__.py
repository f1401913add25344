"""Play every rehearsal, two at a time, and print one table: how long each took, and what failed."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.rehearsals.cases import REHEARSALS, Rehearsal, share
from tests.rehearsals.stage import Stage


def play_all(rehearsals: Sequence[Rehearsal], folder: Path) -> list[dict[str, Any]]:
    """Return for each rehearsal its name, its seconds and what failed."""
    stage, played = Stage(folder), Path(tempfile.mkdtemp(prefix="played-", dir=folder))

    def play(numbered: tuple[int, Rehearsal]) -> dict[str, Any]:
        number, rehearsal = numbered
        began = time.monotonic()
        try:
            failures = rehearsal.failures(stage, played / str(number))
        except Exception as error:  # noqa: BLE001 - counted as what it is, and the others are played
            failures = [f"{type(error).__name__}: {error}"]
        seconds = round(time.monotonic() - began, 1)
        sys.stderr.write(f"{'ok  ' if not failures else 'FAIL'} {rehearsal.name}: {seconds:.0f} s\n")
        sys.stderr.writelines(f"     {failure}\n" for failure in failures)
        return {"name": rehearsal.name, "seconds": seconds, "failures": failures}

    import transformers  # noqa: F401 - here, since of two threads that import it at once one gets a module without names

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(play, enumerate(rehearsals)))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="", help="Play those whose names hold this.")
    parser.add_argument("--seed", type=int, default=0, help="Draws a share.")
    parser.add_argument("--processes", type=int, help="Play a share that starts this number of processes at most.")
    parser.add_argument("--json", type=Path, default=Path("rehearse.json"), help="Where the results are kept.")
    parser.add_argument("--folder", type=Path, help="Keep models and references here, or take them from here.")
    words = parser.parse_args()
    chosen = REHEARSALS if words.processes is None else share(words.seed, words.processes)
    folder = words.folder or Path(tempfile.mkdtemp(prefix="grace-store-rehearsals-"))
    folder.mkdir(exist_ok=True)
    began = time.monotonic()
    try:
        results = play_all([each for each in chosen if words.only in each.name], folder)
    finally:
        if words.folder is None:
            shutil.rmtree(folder, ignore_errors=True)
    for result in results:
        sys.stdout.write(
            f"{result['seconds']:>8.0f} s  {'ok' if not result['failures'] else 'FAIL':<5}{result['name']}\n"
        )
    for result in results:
        sys.stdout.writelines(f"{result['name']}: {failure}\n" for failure in result["failures"])
    failed = sum(bool(result["failures"]) for result in results)
    sys.stdout.write(f"{len(results)} rehearsals, {failed} failed, {time.monotonic() - began:.0f} s\n")
    words.json.write_text(json.dumps({"seed": words.seed, "rehearsals": results}, indent=1) + "\n")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
