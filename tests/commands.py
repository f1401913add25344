"""Commands run as users type them, in this process."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from grace_store.cli import main


def run(*words: object, code: int = 0) -> Result:
    """Run a command and return what came of it; the exit code must be the one given."""
    result = CliRunner().invoke(main, [str(word) for word in words])
    assert result.exit_code == code, result.output + result.stderr
    return result


def run_json(*words: object) -> Any:
    """Run a command with --json and return its result."""
    return json.loads(run(*words, "--json").stdout)


def refuses(scored: Path, tmp_path: Path, arguments: str, code: int, message: str) -> None:
    """Check that a command with bad arguments says so, prints nothing else and writes nothing."""
    places = {
        "store": scored / "store.zarr",
        "folder": tmp_path,
        "scores": scored / "scores.parquet",
        "data": scored / "traces.jsonl",
        "nothing": tmp_path / "nothing",
        "out": tmp_path / "out",
    }
    result = run(*(word.format(**places) for word in arguments.split()), code=code)
    assert message in " ".join(result.stderr.split())
    assert "Traceback" not in result.stderr
    assert result.stdout == ""
    assert not list(tmp_path.glob("out*"))


def tree(folder: Path) -> dict[str, tuple[int, str]]:
    """Return every file and folder below one: when it was written, and a digest of what a file holds."""
    found = {}
    for path in sorted(folder.rglob("*")):
        digest = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        found[str(path.relative_to(folder))] = (path.stat().st_mtime_ns, digest)
    return found


def extract_words(store: Path, model: str, data: str) -> list[str]:
    """Return an extraction of the data of tests.jobs in units of four samples."""
    words: list[object] = ["extract", store, "--model", model, "--data", data]
    return [*map(str, words), "--min-steps", "2", "--unit-samples", "4", "--threads", "1"]
