"""Run the training study: python -m jobs.study --out jobs/study/results

Run the same command again after any interruption: it does only what is missing.
"""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

from jobs.study.ending import end
from jobs.study.settings import SETTINGS, read_settings

RESULTS = Path(__file__).parent / "results"

log = logging.getLogger("study")


def main(arguments: list[str] | None = None) -> int:
    """Parse, run, write, and show the first table."""
    parser = argparse.ArgumentParser(prog="python -m jobs.study", description=__doc__)
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of results (default: jobs/study/results)")
    parser.add_argument("--settings", type=Path, default=SETTINGS, help="the settings (default: settings.toml)")
    parser.add_argument("--workers", type=int, default=2, help="trainings at a time, one thread each (default: 2)")
    chosen = parser.parse_args(arguments)
    return end(log, lambda: _study(chosen))


def _study(chosen: argparse.Namespace) -> str:
    """Run the study, write what it found, and return the first table."""
    from jobs.study.study import run_study
    from jobs.study.writing import summary, write_findings

    settings = read_settings(chosen.settings)
    log.info("settings %s", settings.digest())
    study = run_study(settings, chosen.out, num_workers=chosen.workers, tell=log.info)
    for path in write_findings(study):
        log.info("written: %s", path)
    return summary(study.folders) + "\n"


if __name__ == "__main__":
    sys.exit(main())
