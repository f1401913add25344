"""What the README promises for an install, as commands on what tests.every_storage writes: of the core and of extras.

``python -m tests.promised_commands COMMAND...`` runs some in one process, and prints what came of each as JSON.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from click.testing import CliRunner

from grace_store.cli import main

CORE = (
    "plan planned.zarr traces.jsonl --min-steps 2 --dry-run",
    "plan planned.zarr traces.jsonl --min-steps 2",
    "status store.zarr",
    "verify store.zarr",
    "verify store.zarr --deep",
    "verify store.zarr --repair",
    "support store.zarr --out support.json",
    "inspect store.zarr #1 --signal int4",
    "score store.zarr --signal int8 --out scores.parquet",
    "score store.zarr --signal float16 --within group --group-by question --out within.parquet",
    "sweep store.zarr --signal int8 --out sweep",
    "audit scores.parquet",
    "select scores.parquet --ratio 0.4 --out subset.jsonl",
    "select within.parquet --per-group 1 --group-by question --as trl --out per-question.jsonl",
    "weights store.zarr --signal int8 --out weights.parquet",
    "select scores.parquet --ratio 0.4 --weights weights.parquet --as ms-swift --out weighted.jsonl",
    "compare subset.jsonl per-question.jsonl",
    "inspect store.zarr #1 --signal float32 --neighbours 10",
    "contamination store.zarr --against traces.jsonl --out against.parquet",
    "judge store.zarr --signal int8 --right right --out judgement.json",
    "stability store.zarr --signal int8",
    "evaluate results.csv --full Full",
)
"""In an order in which each finds what it reads."""

OF_EXTRAS = {
    "extract": {
        "extract": "extract planned.zarr --model model",
        "doctor": "doctor --data traces.jsonl --model model",
        "fidelity": "fidelity store.zarr --signal int8 --model model",
        "demo": "demo",
        "verify --model": "verify store.zarr --model model",
    },
    "warmup": {
        "warmup": "warmup planned.zarr --model model --out warmup",
        "trial": "trial store.zarr subset.jsonl --model model --out trial",
    },
    "report": {"report": "report store.zarr --scores scores.parquet --subset subset.jsonl --out report.html"},
    "faiss": {
        "duplicates": "duplicates store.zarr --signal float16 --out duplicates.parquet",
        "diversity": "diversity store.zarr --subset subset.jsonl",
        "select --diversity": "select scores.parquet --ratio 0.4 --diversity mmr --out diverse.jsonl",
    },
    "cadc": {
        "score --method cadc": "score store.zarr --signal gradient --targets store.zarr --method cadc --out c.parquet"
    },
    "cloud": {f"{kind}://": f"status {kind}://bucket/store.zarr" for kind in ("s3", "gs", "az")},
    "ray": {"--engine ray": "score store.zarr --signal int8 --engine ray --out ray.parquet"},
}
"""By extra, and by what the README says it is for."""


def named_by_readme(readme: Path) -> dict[str, list[str]]:
    """Return the commands and options that the README's table names, by extra."""
    rows = re.findall(r"^\| `([\w-]+)`(?:, `[\w-]+`)? \| (.+) \|$", readme.read_text(), re.MULTILINE)
    return {extra: re.findall(r"`([^`]+)`", text) for extra, text in rows if extra in OF_EXTRAS}


def outcome(command: str) -> tuple[int, str]:
    """Run a command; return its exit code and what it said, or the error that it did not tell in words."""
    result = CliRunner().invoke(main, command.split())
    is_told = result.exception is None or isinstance(result.exception, SystemExit)
    return result.exit_code, result.output if is_told else repr(result.exception)


if __name__ == "__main__":
    sys.stdout.write(json.dumps({command: outcome(command) for command in sys.argv[1:]}))
