"""What extraction asks of a device for each batch, counted on the pretend accelerator of the tests.

    python -m jobs.bench.device_counts      the table in ROOFLINE.md

Counts, not times: tiny models have a real one's launches for each layer, and exactly its copies and waits.
"""

import json
import re
import sys
from typing import Any

from jobs.bench.findings import markdown
from tests.pretend.processes import run_python

_THEIRS = re.compile(r" at (site-packages/transformers|transformers/utils|models/\w+)/\w+\.py:")
HEADINGS = ("extraction of", "launches", "waits of ours", "waits of transformers", "copies there", "copies back")


def waits_of_ours(counted: dict[str, Any]) -> dict[str, int]:
    """Return the waits between batches, by place, that are not in transformers' code."""
    return {place: number for place, number in counted["waits"].items() if not _THEIRS.search(place)}


def row(name: str, counted: dict[str, Any]) -> tuple[str, ...]:
    """Return a workload's line of the table: what each batch asks for."""
    ours = sum(waits_of_ours(counted).values())
    totals = [sum(counted["waits"].values()) - ours, _copies(counted, "host to device"), _copies(counted, "device to")]
    each = [counted["launches"], ours, *totals]
    return (name, *(f"{number / counted['batches']:.1f}".removesuffix(".0") for number in each))


def _copies(counted: dict[str, Any], way: str) -> int:
    return sum(number for name, number in counted["copies"].items() if name.startswith(way))


def main() -> None:
    """Count, and print the table."""
    made = run_python(["-m", "tests.pretend.hot_loop"], devices=8, timeout=3600)
    if made.returncode:
        sys.exit(made.stderr)
    rows = [row(name, counted) for name, counted in json.loads(made.stdout).items()]
    sys.stdout.write(f"{markdown(HEADINGS, rows)}\n")


if __name__ == "__main__":
    main()
