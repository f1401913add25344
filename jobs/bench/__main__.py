"""Measure what grace-store costs: python -m jobs.bench [--out bench.json] [--page bench.html]

Prints every ratio with its goal, and how costs grow. Both sides of a ratio are measured in turns in one process.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from grace_store.pages.page_files import load_plotly_js, write_page
from jobs.bench.findings import Findings, report, sections
from jobs.bench.measuring import named_apart
from jobs.study.environment import describe_environment

FAMILIES = {
    "forward": "extraction against a bare forward pass",
    "sharing": "traces of one prompt that run it once against each by itself",
    "tokenwise": "the head by segments against token by token",
    "gradients": "extraction against true step gradients",
    "peers": "extraction against bergson and TRAK, where installed",
    "scoring": "sweeps over a million samples against a loop over vectors",
    "storage": "bytes a sample, and what compression costs",
    "commands": "status and a rerun with nothing to do, a million samples",
    "questions": "scoring and choosing within 100,000 questions of ten traces each",
    "host": "what the processor's cores do beside a GPU, for one sample",
    "growth": "how extraction grows",
    "search": "how the search for duplicates grows",
}
ALSO = {"scale": "how a store's own work grows, to ten million samples; takes long, so only if asked for"}
USES_WORK = ("scoring", "commands", "questions", "scale")
"""Families that share large stores."""


def main(arguments: list[str] | None = None) -> int:
    """Parse, measure, print, save."""
    given = _parser().parse_args(arguments)
    if given.page:
        load_plotly_js()  # a page that cannot be written is refused before anything is measured
    families: dict[str, Findings] = {}
    environment = describe(given.threads)
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(given.work or temporary).resolve()
        work.mkdir(parents=True, exist_ok=True)
        for name in given.only or FAMILIES:
            began = time.monotonic()
            families[name] = measure_family(name, given, work)
            sys.stderr.write(f"{name}: {time.monotonic() - began:.0f} s\n")
    environment["load at the end"] = _load()
    sys.stdout.write(report(families, environment))
    if given.out:
        settings = {"quick": given.quick, "threads": given.threads, "families": list(families)}
        found = {name: each.to_json() for name, each in families.items()}
        document = {"environment": environment, "settings": settings, "families": found}
        given.out.write_text(json.dumps(document, indent=1) + "\n")
    if given.page:
        write_page(given.page, "What grace-store costs", sections(families, environment))
    return 0


def measure_family(name: str, given: argparse.Namespace, work: Path) -> Findings:
    """Measure one family in a process of its own."""
    more: dict[str, Any] = {"work": str(work)} if name in USES_WORK else {}
    module, function = ("gradients", "measure_peers") if name == "peers" else (name, "measure")
    python = given.peers if name == "peers" else sys.executable
    arguments = {"quick": given.quick, "threads": given.threads, **more}
    return Findings.from_json(named_apart(f"jobs.bench.{module}", function, arguments, python))


def describe(threads: int) -> dict[str, str]:
    """Return what was measured on, and when."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "processor": f"{_processor()}, {os.cpu_count()} cores, {memory:.0f} GiB",
        "threads": str(threads),
        "load at the beginning": _load(),
        **describe_environment(),
        **{name: _version(name) for name in ("zarr", "faiss-cpu")},
    }


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _load() -> str:
    return f"{os.getloadavg()[0]:.1f}"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _parser() -> argparse.ArgumentParser:
    families = "\n".join(f"  {name:<10} {about}" for name, about in (FAMILIES | ALSO).items())
    parser = argparse.ArgumentParser(
        prog="python -m jobs.bench",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description=__doc__,
        epilog=f"families:\n{families}",
    )
    parser.add_argument("--out", type=Path, help="also write everything here, as JSON")
    parser.add_argument("--page", type=Path, help="also write one HTML page here, with the curves drawn")
    parser.add_argument(
        "--only", nargs="+", choices=FAMILIES | ALSO, metavar="FAMILY", help="measure only these families"
    )
    parser.add_argument("--quick", action="store_true", help="tiny sizes: shows that all of it runs, measures nothing")
    parser.add_argument("--threads", type=int, default=1, help="threads of both sides (default: 1)")
    parser.add_argument("--work", help="a folder to keep large synthetic stores in (default: a temporary one)")
    parser.add_argument(
        "--peers",
        default=sys.executable,
        metavar="PYTHON",
        help="a Python that has bergson and TRAK (default: this one)",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
