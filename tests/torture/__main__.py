"""Run every torture, two at a time, and print one table: what was tried, what became of it, and what failed."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.torture.mutants import MUTANTS
from tests.torture.tally import FAILURES_SHOWN, Tally

PIECES = {
    "rot": 20000, "faults": 1700, "syscalls": 300, "power": 1500, "kills": 300, "load": 5000, "rivals": 120,
    "fuzz": 40000, "answers": 300, "torn": 200, "trespass": 150,
}  # fmt: skip
"""The longest first. {module: how often}."""


def run_piece(name: str, seed: int, count: int, folder: Path) -> tuple[Tally, float]:
    """Run one torture in a process of its own."""
    result = folder / f"{name}.json"
    words = [sys.executable, "-m", f"tests.torture.{name}", "--seed", str(seed), "--count", str(count)]
    began = time.monotonic()
    done = subprocess.run([*words, "--json", str(result)], capture_output=True, text=True, check=False)
    seconds = time.monotonic() - began
    sys.stderr.write(f"{name}: {seconds:.0f} s\n")
    if not result.exists():
        return Tally(name, failures=[f"ended with {done.returncode}: {done.stderr[-2000:]}"]), seconds
    raw = json.loads(result.read_text())
    return merged(name, raw) if isinstance(raw, list) else Tally.from_json(raw), seconds


def merged(name: str, parts: list[dict[str, Any]]) -> Tally:
    """Return the sum of several tallies: fuzzing has one for each kind of input."""
    total = Tally("inputs fuzzed" if name == "fuzz" else name)
    for part in map(Tally.from_json, parts):
        total.tried += part.tried
        total.became += part.became
        total.failures += [f"{part.name}: {failure}" for failure in part.failures]
    return total


def table(tallies: list[Tally]) -> str:
    """Return a line for each torture: tried, failed, and what became of the rest."""
    lines = [f"{'':<28}{'tried':>8}{'failed':>8}  what became of them"]
    for tally in tallies:
        became = ", ".join(f"{count} {what}" for what, count in tally.became.most_common())
        lines.append(f"{tally.name:<28}{tally.tried:>8}{len(tally.failures):>8}  {became}")
        figures = ", ".join(f"{what} {value:g}" for what, value in tally.figures.items())
        if figures:
            lines.append(f"{'':<44}  ({figures})")
    tried, failed = sum(each.tried for each in tallies), sum(len(each.failures) for each in tallies)
    return "\n".join([*lines, f"{'in all':<28}{tried:>8}{failed:>8}"])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--share", type=float, default=1.0, help="How much of each torture; 0.1 is a tenth.")
    parser.add_argument("--only", nargs="*", choices=PIECES, default=list(PIECES))
    parser.add_argument("--json", type=Path, default=Path("torture.json"), help="Where the counts are kept.")
    parser.add_argument("--mutants", action="store_true", help="Also take safeguards out of the package.")
    words = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(2) as pool:
        futures = [
            pool.submit(run_piece, name, words.seed, max(1, round(PIECES[name] * words.share)), Path(scratch))
            for name in words.only
        ]
        # Two run at a time there too, so this comes when the rest is done.
        results = [future.result() for future in futures]
        if words.mutants:
            results.append(run_piece("mutants", words.seed, len(MUTANTS), Path(scratch)))
    tallies = [tally for tally, _ in results]
    sys.stdout.write(f"{table(tallies)}\nseed {words.seed}, {time.monotonic() - began:.0f} s\n")
    for tally in tallies:
        for failure in tally.failures[:FAILURES_SHOWN]:
            sys.stdout.write(f"{tally.name}: {failure}\n")
    counts = [tally.to_json() | {"seconds": round(seconds, 1)} for tally, seconds in results]
    words.json.write_text(json.dumps({"seed": words.seed, "share": words.share, "tortures": counts}, indent=1) + "\n")
    sys.exit(any(tally.failures for tally in tallies))


if __name__ == "__main__":
    main()
