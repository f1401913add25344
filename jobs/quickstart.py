"""Run the commands of docs/quickstart.md again and put what they print into the page.

    python -m jobs.quickstart --solutions PROCESSBENCH/gsm8k.json --model MODEL --work DIR

Makes solutions.json, the file that the page is about, from the part gsm8k of ProcessBench: its solutions of up to 1,000
characters, in a layout of their own. Then it runs every command below a line `<!-- output -->` in DIR, in the order of
the page. `<!-- output: 9 3 -->` keeps the first 9 and the last 3 lines of what is printed, and `...` stands for the
rest. A store that is there is not extracted again, and what the page shows of its
extraction stays: a second call is quick. Remove DIR to begin anew.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

PAGE = Path(__file__).parent.parent / "docs/quickstart.md"
MODEL = "SmolLM2-135M-Instruct.gguf"
"""What the page calls the model."""
MAX_CHARS = 1000
MAX_WIDTH = 116
MAX_LINE = 400
BLOCK = re.compile(
    r"(<!-- output(?:: (\d+) (\d+))? -->\n\n)    \$ ((?:[^\n]*\\\n)*[^\n]*)\n((?:    [^\n]*\n|\n(?=    ))*)"
)
"""The mark, how many lines are kept, the command, and what it printed."""

Run = Callable[[str], str | None]
"""Takes a command and returns what it prints; None to leave what the page shows."""


def commands_of(page: str) -> list[str]:
    """Return the commands whose output is kept up to date."""
    return [_joined(found[4]) for found in BLOCK.finditer(page)]


def refreshed(page: str, run: Run) -> str:
    """Return the page with what every command prints now."""
    return BLOCK.sub(lambda found: _block(found, run), page)


def shortened(lines: list[str], first: int, last: int) -> list[str]:
    """Return the first and the last lines of many, with a mark between them.

    >>> shortened(["a", "b", "c", "d"], 1, 1)
    ['a', '...', 'd']
    """
    return lines if len(lines) <= first + last + 1 else [*lines[:first], "...", *lines[len(lines) - last :]]


def wrapped(line: str) -> list[str]:
    """Return a line as a terminal would wrap it; of a very long one, the beginning."""
    if len(line) <= MAX_WIDTH:
        return [line]
    told = line if len(line) <= MAX_LINE else f"{line[: MAX_LINE - 3]}..."
    return textwrap.wrap(told, MAX_WIDTH, subsequent_indent=" " * (len(line) - len(line.lstrip())))


def write_solutions(processbench: Path, path: Path) -> int:
    """Write records of ProcessBench in another layout; return how many."""
    records = [
        {
            "qid": record["id"],
            "task": {"question": record["problem"], "source": "gsm8k"},
            "model": record["generator"],
            "solution": "\n\n".join(record["steps"]),
            "is_correct": record["final_answer_correct"],
        }
        for record in json.loads(processbench.read_text())
        if sum(map(len, record["steps"])) <= MAX_CHARS
    ]
    path.write_text(json.dumps(records, indent=1))
    return len(records)


def _block(found: re.Match[str], run: Run) -> str:
    mark, first, last, command, _ = found.groups()
    printed = run(_joined(command))
    if printed is None:
        return found[0]
    lines = [line.rstrip() for line in printed.rstrip().splitlines()]
    kept = lines if first is None else shortened(lines, int(first), int(last))
    shown = "".join(f"    {part}\n" if part else "\n" for line in kept for part in wrapped(line))
    return f"{mark}    $ {command}\n{shown}"


def _joined(command: str) -> str:
    return re.sub(r"\s*\\\n\s*", " ", command)


def _run_in(folder: Path) -> Run:
    """Return what runs a command in a folder and gives all that it prints, as a terminal would show it."""
    executable = Path(sys.executable).parent / "grace-store"

    def run(command: str) -> str | None:
        if command.startswith("grace-store extract") and (folder / "solutions.zarr").exists():
            return None
        sys.stderr.write(f"$ {command}\n")
        words, place = re.sub(r"^grace-store", str(executable), command), folder
        if "--dry-run" in command:  # shows what it says before there is a store, whose settings it would take over
            place = folder / "before"
            place.mkdir(exist_ok=True)
            shutil.copyfile(folder / "solutions.json", place / "solutions.json")
        done = subprocess.run(
            words, shell=True, cwd=place, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        return done.stdout.replace(f"{place.resolve()}/", "")

    return run


def main() -> None:
    """Run it from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--solutions", type=Path, required=True, help="ProcessBench's gsm8k.json")
    parser.add_argument("--model", type=Path, required=True, help=f"what stands for {MODEL}")
    parser.add_argument("--work", type=Path, required=True, help="folder for all results")
    chosen = parser.parse_args()
    chosen.work.mkdir(parents=True, exist_ok=True)
    num_records = write_solutions(chosen.solutions, chosen.work / "solutions.json")
    sys.stderr.write(f"solutions.json: {num_records} records\n")
    if not (chosen.work / MODEL).exists():
        shutil.copyfile(chosen.model, chosen.work / MODEL)
    PAGE.write_text(refreshed(PAGE.read_text(), _run_in(chosen.work)))


if __name__ == "__main__":
    main()
