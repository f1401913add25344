"""Which real traces rise and fall: GSM8K solutions and spoilt ones, scored with SmolLM2-135M-Instruct.

    python -m jobs.study.real_traces gsm8k/train.jsonl --out real-traces

Every problem stands in the pool as it is and once with each corruption, so clean and spoilt versions are compared over
the same problems. Run again, it does what is missing. The store is an ordinary one: `grace-store report` shows it.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from grace_store.base.events import Event, Note, Warned
from grace_store.base.files import write_text
from grace_store.base.settings import DataSpec, RunOptions
from grace_store.example import demo_model
from grace_store.run.engines.engine import ExtractJob
from grace_store.run.extract import extract
from grace_store.scoring.score import ScoreRequest, score
from grace_store.scoring.score_table import ScoreTable, read_scores
from grace_store.values.length_bias import rank_correlation
from grace_store.values.methods.method import ScoreSpec
from jobs.study.corruptions import CLEAN, CORRUPTIONS, FEWEST_STEPS, make_traces
from jobs.study.ending import end
from jobs.study.estimates import separation, share_above
from jobs.study.methods import METHODS, label
from jobs.study.tables import Table
from jobs.study.traces import write_records

log = logging.getLogger("real_traces")

SCORED = [name for name, method in METHODS.items() if method.signals == "proxy"]
"""What needs no gradients and no target set."""
QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)


@dataclass(frozen=True, slots=True)
class Scored:
    """One method's values of clean traces and of their spoilt versions, problems in the same order."""

    method: str
    table: ScoreTable
    values: dict[str, npt.NDArray[np.float64]]
    """By label."""


def score_traces(out: Path, model: Path, data: Path, signal: str, threads: int | None) -> list[Scored]:
    """Extract and score what is missing, and return every method's values."""
    store = out / "traces.zarr"
    job = ExtractJob(
        store=str(store),
        model=str(model),
        data=(str(data),),
        signal=signal,
        data_request=DataSpec(format="gsm8k", min_steps=FEWEST_STEPS),
        options=RunOptions(threads=threads),
        samples_per_unit=16,
    )
    if signal == "base":
        extract(job, _tell)
    found = []
    for method in SCORED:
        path = out / "scores" / f"{method}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        spec = METHODS[method].spec or ScoreSpec(measure=("random",))
        score(store, ScoreRequest(spec=spec, signals=signal), out=path)
        table = read_scores(path, steps=False)
        found.append(Scored(method, table, _by_label(table)))
    return found


def _tell(event: Event) -> None:
    if isinstance(event, Note | Warned):
        log.info(event.text)


def _by_label(table: ScoreTable) -> dict[str, npt.NDArray[np.float64]]:
    value = dict(zip(table.sample_id, table.value.tolist(), strict=True))
    labels = (CLEAN, *CORRUPTIONS)
    problems = [name.partition("-")[0] for name in table.sample_id if name.endswith(f"-{CLEAN}")]
    # A problem counts if all its versions have a value: only then are they compared over the same problems.
    whole = [each for each in problems if all(np.isfinite(value.get(f"{each}-{kind}", np.nan)) for kind in labels)]
    return {kind: np.array([value[f"{each}-{kind}"] for each in whole]) for kind in labels}


def tables_of(scored: Sequence[Scored]) -> list[Table]:
    """Return how well values tell clean from spoilt, how they follow length, and where they lie by label."""
    num_problems = len(scored[0].values[CLEAN])
    told, lengths, quantiles = [], [], []
    for each in scored:
        clean = each.values[CLEAN]
        areas = (separation(clean, each.values[kind], paired=True).text(2) for kind in CORRUPTIONS)
        wins = (share_above(clean, each.values[kind]).text(2) for kind in CORRUPTIONS)
        told.append((label(each.method), *(f"{area}; {share}" for area, share in zip(areas, wins, strict=True))))
        finite = np.isfinite(each.table.value)
        known = each.table.lengths
        cells = (
            f"{rank_correlation(each.table.value[finite], known[name][finite]):.2f}"
            for name in ("response_length", "num_steps")
            if name in known
        )
        lengths.append((label(each.method), *cells))
    grace = next(each for each in scored if each.method == "grace")
    for kind, values in grace.values.items():
        quantiles.append((kind, *(f"{cut:.4f}" for cut in np.quantile(values, QUANTILES))))
    return [
        Table(
            "Clean against spoilt",
            ("Method", *CORRUPTIONS),
            tuple(told),
            f"{num_problems} problems of GSM8K. The chance that a clean trace has a larger value than a spoilt one of "
            "another problem (area under the ROC), then the share of problems whose clean version is above its own "
            "spoilt one; 95 % over problems. 0.5 is chance.",
        ),
        Table(
            "Rank correlation with length",
            ("Method", "response tokens", "steps"),
            tuple(lengths),
            "Over all traces, spoilt ones included.",
        ),
        Table(
            "GRACE values by label",
            ("label", *(f"{cut:.0%}" for cut in QUANTILES)),
            tuple(quantiles),
            "Quantiles over the same problems.",
        ),
    ]


def run(chosen: argparse.Namespace) -> str:
    """Make the traces, score them, and return the tables as they are written."""
    traces = chosen.out / "traces.jsonl"
    write_records(traces, make_traces(chosen.data, chosen.problems, chosen.seed))
    scored = score_traces(chosen.out, chosen.model or demo_model(), traces, chosen.signal, chosen.threads)
    text = "\n".join(["# Real traces\n", *(table.markdown() for table in tables_of(scored))])
    write_text(chosen.out / "real-traces.md", text)
    return text


def main(arguments: list[str] | None = None) -> int:
    """Parse, run, and write the tables."""
    parser = argparse.ArgumentParser(prog="python -m jobs.study.real_traces", description=__doc__)
    parser.add_argument("data", type=Path, help="a GSM8K file: question and answer a line")
    parser.add_argument("--out", type=Path, required=True, help="folder of the store, the scores and the tables")
    parser.add_argument("--problems", type=int, default=72, help="problems, five traces each (default: 72)")
    parser.add_argument("--model", type=Path, help="another model (default: SmolLM2-135M-Instruct)")
    parser.add_argument("--signal", default="base", help="another signal of the store, extracted with grace-store")
    parser.add_argument("--seed", type=int, default=0, help="which problems, and what is spoilt (default: 0)")
    parser.add_argument("--threads", type=int, help="of the CPU (default: all, up to 8)")
    chosen = parser.parse_args(arguments)
    return end(log, lambda: run(chosen))


if __name__ == "__main__":
    sys.exit(main())
