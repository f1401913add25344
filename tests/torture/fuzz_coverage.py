"""Fuzzing guided by coverage: atheris keeps inputs that reach new code, and stops at the first failure."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

from tests.torture.tally import Tally

SECONDS_PER_CASE = 30
MEMORY_MB = 6144
_RUNS = re.compile(r"Done (\d+) (?:runs )?in (\d+) second|stat::number_of_executed_units:\s*(\d+)")


def run_covered(name: str, words: list[str], folder: Path) -> Tally:
    """Run one target in a process of its own; words are the seed, the target's folder and --count or --seconds."""
    place = folder / name.replace(" ", "-")
    done = subprocess.run(
        [sys.executable, "-m", "tests.torture.fuzz_coverage", name, *words], capture_output=True, text=True, check=False
    )
    executed = [int(match[1] or match[3]) for match in _RUNS.finditer(done.stderr) if match[1] or match[3]]
    tally = Tally(name, max(executed, default=0), Counter())
    if done.returncode or not executed:
        kept = sorted(place.glob("crash-*")) + sorted(place.glob("timeout-*")) + sorted(place.glob("oom-*"))
        found = kept[0].read_bytes()[:300] if kept else b""
        tally.failures.append(f"the process ended with {done.returncode} on {found!r}: {done.stderr[-2500:]}")
    return tally


def _fuzz(name: str, seed: str, place: Path, option: str, amount: str) -> None:
    import atheris

    with atheris.instrument_imports(include=["grace_store"]):
        from grace_store.base.errors import GraceStoreError
        from tests.torture.fuzz_targets import TARGETS
    target = TARGETS[name]
    corpus = place / "corpus"
    corpus.mkdir()
    for number, good in enumerate(target.seeds(place)):
        (corpus / f"seed-{number:03}").write_bytes(good)

    def one_input(data: bytes) -> None:
        try:
            target.run(data, place)
        except GraceStoreError:
            return

    limit = f"-runs={amount}" if option == "--count" else f"-max_total_time={float(amount):.0f}"
    flags = [limit, f"-seed={int(seed) + 1}", f"-timeout={SECONDS_PER_CASE}", f"-rss_limit_mb={MEMORY_MB}"]
    flags += ["-max_len=65536", f"-artifact_prefix={place}/", "-print_final_stats=1"]
    atheris.Setup([sys.argv[0], *flags, str(corpus)], one_input)
    atheris.Fuzz()


if __name__ == "__main__":
    _fuzz(sys.argv[1], sys.argv[2], Path(sys.argv[3]), sys.argv[4], sys.argv[5])
