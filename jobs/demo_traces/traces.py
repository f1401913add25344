"""Make the demo dataset: ``python -m jobs.demo_traces.traces`` writes traces.jsonl and images/ into the package.

Each record says in ``kind`` what it is about, in ``quality`` in which known way it is bad, in ``bad_steps`` where, and
in ``copy_of`` which other record it repeats: flags, duplicates and signals can be held against that. The last four
lines cannot be used, each for a reason of its own.
"""

from __future__ import annotations

import json
import re
from itertools import count, cycle
from pathlib import Path
from random import Random
from typing import Any

from grace_store.example import FOLDER
from jobs.demo_traces.figures import draw_figure
from jobs.demo_traces.flaws import QUALITIES
from jobs.demo_traces.problem import Drawing
from jobs.demo_traces.problems import KINDS

Record = dict[str, Any]

SEED = 113
FIGURE_KINDS = ("rectangle", "triangle", "sector", "chart")
NUM_PER_KIND = 5
NUM_PER_FIGURE_KIND = 6
NUM_FIGURES_PER_KIND = 4
SEE_FIGURE = ("The figure shows the situation.", "See the figure.", "A sketch is given in the figure.")


def usable_records(seed: int = SEED) -> list[tuple[Record, Drawing | None]]:
    """Return the 64 usable records in their order, each with what its figure shows."""
    flaws = cycle(quality for quality in QUALITIES if quality != "clean")
    made: list[tuple[Record, Drawing | None]] = []
    asked: set[tuple[str, ...]] = set()
    for kind in KINDS:
        for number in range(1, (NUM_PER_FIGURE_KIND if kind in FIGURE_KINDS else NUM_PER_KIND) + 1):
            quality = "clean" if len(made) % 2 == 0 else next(flaws)
            with_figure = kind in FIGURE_KINDS and number <= NUM_FIGURES_PER_KIND
            if quality == "clean" and number == NUM_PER_KIND and kind not in FIGURE_KINDS:
                made.append((_copy(made[1 - NUM_PER_KIND][0], number, exact=len(made) % 4 == 0), None))
                continue
            made.append(_new_trace(kind, number, quality, seed, asked, with_figure=with_figure))
    Random(f"{seed}/order").shuffle(made)
    return made


def unusable_lines(seed: int = SEED) -> list[str]:
    """Return four lines to be set aside: no answer, too few steps, an id used before, not JSON."""
    first = usable_records(seed)[0][0]
    kinds = ("average", "speed", "ratio", "probability")
    spare = [_trace(kind, 0, "clean", f"{seed}/spare", with_figure=False)[0] for kind in kinds]
    outputs = [str(record["output"]) for record in spare]
    answer = outputs[1].index("†Answer:")
    changes: list[Record] = [
        {"id": "broken-no-answer", "output": outputs[0][: outputs[0].index("\n†Answer:")]},
        {"id": "broken-few-steps", "output": outputs[1][: outputs[1].index("Step 5:")] + outputs[1][answer:]},
        {"id": first["id"]},
    ]
    lines = [_line({**record, **change, "quality": "unusable"}) for record, change in zip(spare, changes, strict=False)]
    not_json = _line({**spare[3], "id": "broken-not-json", "quality": "unusable"})
    return [*lines, not_json[: len(not_json) // 2]]


def dataset_text(seed: int = SEED) -> str:
    """Return the whole of traces.jsonl."""
    lines = [_line(record) for record, _ in usable_records(seed)] + unusable_lines(seed)
    return "".join(f"{line}\n" for line in lines)


def write_demo(folder: Path, seed: int = SEED) -> None:
    """Write traces.jsonl and its images into a folder."""
    (folder / "images").mkdir(parents=True, exist_ok=True)
    for record, drawing in usable_records(seed):
        if drawing is not None:
            draw_figure(drawing, folder / str(record["image_url"]))
    (folder / "traces.jsonl").write_text(dataset_text(seed), encoding="utf-8", newline="\n")


def main() -> None:
    """Write the demo dataset beside this file."""
    write_demo(FOLDER)


def _new_trace(
    kind: str, number: int, quality: str, seed: int, asked: set[tuple[str, ...]], *, with_figure: bool
) -> tuple[Record, Drawing | None]:
    """Return a trace whose numbers were not asked about before, and note them."""
    for attempt in count():
        record, drawing = _trace(kind, number, quality, f"{seed}/{attempt}", with_figure=with_figure)
        question = (kind, *re.findall(r"[\d.]*\d", str(record["instruction"])))
        if question not in asked:
            break
    asked.add(question)
    return record, drawing


def _copy(record: Record, number: int, *, exact: bool) -> Record:
    """Return a record again under another id, word for word or with one more step at its end."""
    name, output = f"{record['kind']}-{number:02d}", str(record["output"])
    if not exact:
        steps, _, answer = output.partition("\n†Answer: ")
        output = f"{steps}\nStep {steps.count(chr(10)) + 2}: The answer is therefore {answer}.\n†Answer: {answer}"
    return {**record, "id": name, "output": output, "copy_of": record["id"]}


def _trace(kind: str, number: int, quality: str, seed: str, *, with_figure: bool) -> tuple[Record, Drawing | None]:
    name = f"{kind}-{number:02d}"
    rng = Random(f"{seed}/{name}")
    problem = KINDS[kind](rng)
    solution = QUALITIES[quality](problem, rng)
    steps = [f"Step {n}: {text}" for n, text in enumerate(solution.steps, 1)]
    opening = [solution.opening] if solution.opening else []
    record: Record = {
        "id": name,
        "image_url": f"images/{name}.png" if with_figure else None,
        "instruction": f"{problem.instruction} {rng.choice(SEE_FIGURE)}" if with_figure else problem.instruction,
        "output": "\n".join([*opening, *steps, f"†Answer: {solution.answer}"]),
        "kind": kind,
        "quality": quality,
        "bad_steps": solution.bad,
        "copy_of": None,
    }
    return record, problem.drawing if with_figure else None


def _line(record: Record) -> str:
    return json.dumps(record, ensure_ascii=False)


if __name__ == "__main__":
    main()
