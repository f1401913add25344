"""grace-store inspect"""

import math
from pathlib import Path
from typing import Any

import click
from rich.padding import Padding
from rich.text import Text

import grace_store as gs
from grace_store.base.finding import number_text
from grace_store.base.states import ABOUT
from grace_store.base.text import one_line
from grace_store.cli import shared
from grace_store.cli.console import console, escape_controls, print_json, show
from grace_store.cli.options import COUNT, FILE, NATURAL, command, flag, given, only_given, option, options_of
from grace_store.cli.progress import ProgressDisplay
from grace_store.values.methods.method import ScoreSpec

COLUMNS = {
    "tokens": "num_tokens",
    "loss": "loss",
    "entropy": "entropy",
    "hits": "hit_rate",
    "norm": "norm",
    "answer": "answer_alignment",
    "history": "history_alignment",
    "score": "step_score",
}
"""Headings for the numbers of a segment, with the names of these numbers in the result."""
MEASURE = (
    "Measure of the scores, as NAME:WAY:AGGREGATION; `score --help` lists the names. Larger scores are better: if the "
    "lowest losses are better, their scores are negative. [default: grace]"
)
SCORE_SETTINGS = ("measure", "alpha", "history", "target")


@command(
    "grace-store inspect traces.zarr triangle-03",
    "grace-store inspect traces.zarr '#17'                         # the record in row 17 of the dataset",
    "grace-store inspect traces.zarr '#17' --tokens                # with the numbers of every token",
    "grace-store inspect traces.zarr '#17' --measure rsr:lowest            # scores by another measure",
    "grace-store inspect traces.zarr '#17' --neighbours 5          # and the samples nearest to it",
    "grace-store inspect traces.zarr --vectors new.npy             # the samples nearest to a new trace",
)
@shared.store
@click.argument("sample", required=False)
@flag(
    "--tokens",
    "Show every token of the response: its text, log-probability, rank, entropy, and the length of its error p - y.",
)
@options_of(ScoreSpec, only=SCORE_SETTINGS, differing=shared.own_score(MEASURE))
@option("--neighbours", COUNT, "Number of nearest samples to list. [default: none]")
@flag("--least", "List the samples with the smallest cosines instead of the nearest samples.")
@option(
    "--vectors",
    FILE,
    "List the neighbours of a new trace instead of SAMPLE. The option names a .npy file with the vectors of the new "
    "trace, of shape (K+1, d), with the answer last. [default: none]",
)
@shared.scores(
    "Table with the values to show for neighbours, and with the step scores for --descriptor weighted. [default: "
    "values by --measure]"
)
@shared.where(" (with --scores also num_tokens, value, flags)")
@shared.search
@option("--seed", NATURAL, "With --descriptor projected, seed of the projection. [default: 0]")
@shared.moved_data
def inspect(
    store: str,
    sample: str | None,
    neighbours: int | None,
    vectors: Path | None,
    scores: Path | None,
    *,
    tokens: bool,
    as_json: bool,
    **settings: Any,
) -> None:
    """Show one sample, segment by segment, with losses and scores.

    SAMPLE is an id, or #ROW for a row of the dataset. The output begins with the sample's flags and their meanings. For
    each segment it has the number of tokens, the mean loss and entropy, the share of tokens that the model predicts
    (hits), the norm of the vector, the alignments with answer and history, and the score by --measure. A sample that is
    not extracted yet has only its segments' texts. With --tokens, a line for each token follows instead of the text,
    and colours mark unlikely tokens: yellow for a probability below 0.1, red below 0.001.

    With --neighbours, the nearest samples follow, in the order of their cosines. Each one has its value, the beginning
    of its prompt and its answer. The options from --least to --seed, except --signal and --labels, are for neighbours.
    """
    from grace_store.study.inspect import COUNT as DEFAULT_COUNT
    from grace_store.study.inspect import read_vectors

    if (sample is None) == (vectors is None):
        raise click.UsageError("Give a SAMPLE or --vectors, and not both.")
    is_alone = neighbours is None and vectors is None
    if tokens and sample is None:
        raise click.UsageError("--tokens shows the tokens of a sample of the store: give SAMPLE instead of --vectors.")
    own = ("store", "sample", "signal", "data", "labels", "tokens", "as_json", *SCORE_SETTINGS)
    if is_alone and (ignored := given(but=own)):
        raise click.UsageError(f"{', '.join(ignored)} needs --neighbours: give --neighbours N, too.")
    measured = only_given({name: settings.pop(name) for name in SCORE_SETTINGS})
    spec = ScoreSpec.parse(**measured) if measured else None
    pool = shared.take_pool(store, settings, settings.pop("threads"))
    shown = {} if sample is None else gs.inspect(pool, sample, tokens=tokens, score=spec)
    found = None
    if not is_alone:
        query = sample if sample is not None else read_vectors(str(vectors))
        asked = {"scores": None if scores is None else gs.read_scores(scores), "score": spec, **only_given(settings)}
        with ProgressDisplay(quiet=as_json) as display:
            found = gs.neighbours(pool, query, neighbours or DEFAULT_COUNT, **asked, listener=display)
    if as_json:
        print_json(shown if found is None else {**shown, "neighbours": found.to_json()})
        return
    if shown:
        _print_sample(shown, spec or ScoreSpec())
    if found is not None:
        show(found, as_json=False)


def _print_sample(shown: dict[str, Any], spec: ScoreSpec) -> None:
    """Print a sample: a line of numbers for each segment and its text below, so that both fit on any terminal."""
    where = "no signal yet" if shown["signal"] is None else f"signal {shown['signal']}"
    place = f"row {shown['row']}  {where}  {shown['state']}"
    console.print(f"{escape_controls(shown['sample_id'])}  {place}", markup=False)
    if shown["why_set_aside"]:
        console.print(f"set aside: {escape_controls(shown['why_set_aside'])}", markup=False)
    for name, value in shown.get("labels", {}).items():
        console.print(f"label {escape_controls(one_line(name))}: {escape_controls(one_line(value))}", markup=False)
    for name in shown["flags"]:
        console.print(f"flagged {name}: {ABOUT[name]}", markup=False)
    if shown["missing_text"]:
        console.print(f"(text not shown: {shown['missing_text']})", markup=False)
    if shown["prompt"]:
        console.print(Text(escape_controls(shown["prompt"]), style="dim"))
    if shown.get("value") is not None:
        told = "".join(f", {name} {getattr(spec, name)}" for name in SCORE_SETTINGS[1:] if name in spec.used)
        console.print(f"value {number_text(shown['value'], 4)} by {spec.title}{told}")
    if has_scores := "gram" in shown:
        console.print(" " * 9 + "".join(f"{name:>8}" for name in COLUMNS), style="bold")
    elif shown["state"] == "done":  # one vector for the whole sample
        console.print(f"{shown['num_tokens']} tokens, loss {shown['loss']:.3f}, gradient of length {shown['norm']:.4g}")
    for segment in shown["segments"]:
        if has_scores:
            cells = [f"{segment['name']:<9}"]
            for value in (segment[key] for key in COLUMNS.values()):
                cells.append(f"{'' if value is None else value if isinstance(value, int) else number_text(value):>8}")
            score = segment["step_score"] if spec.is_grace else None
            style = None if score is None else "green" if score > 0 else "red"
            console.print("".join(cells), style=style, markup=False)
        else:
            console.print(segment["name"], style="bold")
        if "tokens" in segment:
            _print_tokens(segment["tokens"])
            continue
        console.print(Padding(Text(escape_controls((segment["text"] or "").strip()), style="dim"), (0, 0, 0, 2)))


def _print_tokens(tokens: list[dict[str, Any]]) -> None:
    """Print a line for each token; unlikely tokens have a colour."""
    console.print(f"  {'log p':>8}{'rank':>7}{'entropy':>9}{'|p - y|':>9}  token", style="dim", markup=False)
    for token in tokens:
        log_p = token["log_probability"]
        style = "red" if log_p < math.log(0.001) else "yellow" if log_p < math.log(0.1) else None
        numbers = f"  {log_p:>8.3f}{token['rank']:>7}{token['entropy']:>9.3f}{token['error']:>9.3f}"
        console.print(f"{numbers}  {'' if token['text'] is None else repr(token['text'])}", style=style, markup=False)
