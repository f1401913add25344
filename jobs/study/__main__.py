"""Run the training study: python -m jobs.study --out jobs/study/results

Run the same command again after any interruption: it does only what is missing.
"""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

from grace_store.base.errors import GraceStoreError
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
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    log.setLevel(logging.INFO)
    from jobs.study.study import run_study
    from jobs.study.writing import summary, write_findings

    try:
        settings = read_settings(chosen.settings)
        log.info("settings %s", settings.digest())
        study = run_study(settings, chosen.out, num_workers=chosen.workers, tell=log.info)
        for path in write_findings(study):
            log.info("written: %s", path)
    except GraceStoreError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(summary(study.folders) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
