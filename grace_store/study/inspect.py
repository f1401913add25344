"""Show one sample: its segments with all stored signals, and the nearest samples."""

import math
import shlex
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from grace_store.base.arrays import Float32Array, offsets_of
from grace_store.base.errors import DataError, SettingError, Unfinished, UnknownName
from grace_store.base.events import Listener, Warned, ignore
from grace_store.base.finding import Cell, Column, Finding, Table, make_columns
from grace_store.base.states import flag_names
from grace_store.base.text import counted, one_line
from grace_store.choose.duplicates import scored_pool
from grace_store.likeness.duplicate_groups import DEFAULT_THRESHOLD
from grace_store.likeness.points import Descriptor, Nearest
from grace_store.pool.descriptors import DescriptionReader
from grace_store.pool.pool import Pool, PoolLike
from grace_store.pool.records import UnitLoader, open_dataset
from grace_store.pool.samples import StoredSample, samples_at, token_table
from grace_store.pool.walk import EVERYTHING, Reads, SignalReader, arrays_of
from grace_store.run.status import check_planned, why_set_aside
from grace_store.scoring.notes import check_plan_of
from grace_store.scoring.score_table import ScoreTable
from grace_store.store.opened import SignalView, Store
from grace_store.values.measures import NO_VALUE, Responses, scores_by, trace_values
from grace_store.values.methods.grace import RaggedScores
from grace_store.values.methods.method import ScoreSpec


def inspect(pool: PoolLike, sample: str, *, tokens: bool = False, score: ScoreSpec | None = None) -> dict[str, Any]:
    """Return a sample (its id, or #ROW) as sample_view does, and why the sample was set aside.

    score has the measure for the scores; by default GRACE's, if the signal has steps. With tokens, every segment has
    its tokens, with their numbers from the token table and their parts of the text.

    Without any signal in the store, the result is the text by segments, without values. The pool names the signal and
    the location of the dataset. A sample that the pool's filter leaves out is shown, too. If the pool has a file of
    labels, the result has the sample's labels.
    """
    pool = Pool.of(pool)
    store = pool.store
    check_planned(store, sample)
    known: dict[str, Any] = {}
    if pool.label_columns is not None:
        labels = pool.label_columns.at(np.array([store.find(sample)]))
        known["labels"] = {name: labels.column(name, list)[0].as_py() for name in labels.names}
    if not pool.signals and not store.signal_names and not tokens:
        if score is not None:
            if score.reads_model:
                raise UnknownName(f"{store.location} has no signal yet, and {score.title} needs one: run `extract`.")
            planned = _responses(store, None, store.find(sample), score)
            known["value"] = float(trace_values(score.measures[0], planned)[0])
        return planned_view(store, store.find(sample), pool.data) | {"why_set_aside": None} | known
    view = pool.signal
    shown = sample_view(view, store.find(sample), score, pool.data)
    if tokens and shown["state"] == "done":
        for segment, found in zip(shown["segments"], _tokens(view, shown), strict=True):
            segment["tokens"] = found
    return shown | {"why_set_aside": why_set_aside(view, shown["sample"]) or None} | known


def _tokens(view: SignalView, shown: Mapping[str, Any]) -> list[list[dict[str, Any]]]:
    """Return the tokens of each segment, with their numbers; raise UnknownName if there are none."""
    if (table := token_table(view, shown["sample"])) is None:
        of_sample = f"sample {shown['sample_id']!r} has no rows in it: the tokenizer makes too many tokens of its text"
        made_from = [f"--{name}={path}" for name, path in view.signal.origin.items() if name in ("model", "adapter")]
        words = ["grace-store", "extract", view.store.location, *made_from, "--signal", f"{view.name}-tokens"]
        remedy = f"Begin a new signal: `{shlex.join(words)}`"
        why = f"{of_sample}." if view.signal.spec.has_token_table else f"the signal has none. {remedy}."
        raise UnknownName(f"--tokens reads the token table of signal {view.name!r}, but {why}")
    texts = [segment["text"] for segment in shown["segments"]]
    response = None if None in texts else "".join(texts)
    stops = offsets_of(table["num_characters"])[1:].tolist()
    tokens = [
        {
            "text": None if response is None else response[start:stop],
            "log_probability": float(table["log_probability"][i]),
            "rank": int(table["rank"][i]),
            "entropy": float(table["entropy"][i]),
            "error": float(table["error"][i]),
        }
        for i, (start, stop) in enumerate(zip([0, *stops], stops, strict=False))
    ]
    cuts = offsets_of(np.array([segment["num_tokens"] for segment in shown["segments"]])).tolist()
    return [tokens[start:stop] for start, stop in pairwise(cuts)]


def planned_view(store: Store, sample: int, data: Sequence[str | Path] | None = None) -> dict[str, Any]:
    """Return a planned sample: its place in the store, and its text by segments if the dataset is there."""
    rows = store.samples(sample, sample + 1)
    result: dict[str, Any] = {
        "sample_id": rows.sample_id[0],
        "row": int(rows.row[0]),
        "sample": sample,
        "unit": store.plan.unit_of(sample),
        "signal": None,
        "state": "planned",
        "num_steps": int(rows.num_steps[0]),
        "prompt": None,
        "flags": flag_names(int(store.text_flags(sample, sample + 1)[0])),
        "missing_text": None,
    }
    texts: list[str] = []
    try:
        with open_dataset(store, data) as dataset:
            found = UnitLoader(store, dataset).read(sample, sample + 1)[0]
        texts = found.segments
        result["prompt"] = "\n".join(turn.text for turn in found.turns)
    except (DataError, OSError) as error:
        result["missing_text"] = str(error)
    names = [*(f"step {i}" for i in range(1, len(texts))), "answer"]
    return result | {"segments": [{"name": name, "text": text} for name, text in zip(names, texts, strict=False)]}


def sample_view(
    view: SignalView, sample: int, spec: ScoreSpec | None = None, data: Sequence[str | Path] | None = None
) -> dict[str, Any]:
    """Return the segments of a sample with all stored signals; texts are None if the dataset cannot be read."""
    result = planned_view(view.store, sample, data) | {"signal": view.name, "state": view.state(sample)}
    if result["state"] != "done":
        return result
    if view.per_sample:  # the sample has one vector and no steps
        numbers = {name: float(view.sample_value(f"sample_{name}", sample)) for name in ("loss", "norm")}
        result |= {"num_tokens": int(view.sample_value("sample_num_tokens", sample)), **numbers}
        if spec is None:
            return result | {"value": None}
    samples = _responses(view.store, view, sample, spec or ScoreSpec())
    scores = scores_by(samples.spec.measures[0], samples)
    result["value"] = float(scores.value[0])
    if view.per_sample:
        return result
    found = _signals(view, sample, samples, scores, [segment["text"] for segment in result["segments"]])
    return result | found | {"flags": found["flags"] + (result["flags"] or [])}


def _responses(store: Store, view: SignalView | None, sample: int, spec: ScoreSpec) -> Responses:
    """Return a sample as the measure of a score takes it: all that the signal has, or what the plan has without one."""
    if len(spec.measure) > 1:
        raise SettingError(f"inspect takes one measure: {len(spec.measure)} are given, {', '.join(spec.measure)}")
    of_whole: tuple[Reads, ...] = ("responses",) if {*arrays_of(spec)} <= {"loss"} else ()
    reads = (*arrays_of(spec), *of_whole) if view is not None and view.per_sample else EVERYTHING
    (block,) = SignalReader.blocks_at(store, () if view is None else (view.name,), np.array([sample]), reads)
    return block.responses(0, spec)


def _signals(
    view: SignalView, sample: int, samples: Responses, scores: RaggedScores, texts: list[str]
) -> dict[str, Any]:
    gram, num_tokens, aligned = view.gram(sample), samples.num_tokens, samples.scores
    span = view.segments("segment_span", sample)
    num_segments = len(num_tokens)
    segments = []
    for i in range(num_segments):
        is_step = i < num_segments - 1
        segments.append(
            {
                "name": f"step {i + 1}" if is_step else "answer",
                "text": texts[i] if texts else None,
                "span": span[i].tolist(),
                "num_tokens": int(num_tokens[i]),
                **{name: float(each[i]) for name, each in samples.statistic.items()},
                "norm": float(gram[i, i] ** 0.5),
                "answer_alignment": float(aligned.answer_alignment[i]) if is_step else None,
                "history_alignment": float(aligned.history_alignment[i]) if is_step and i > 0 else None,
                "step_score": float(scores.step_score[i]) if is_step and np.isfinite(scores.step_score[i]) else None,
            }
        )
    flags = flag_names(int((aligned.flags[0] & ~NO_VALUE) | scores.flags[0]))
    return {"flags": flags, "segments": segments, "gram": gram.tolist()}


COUNT = 10
"""Default number of neighbours."""
COLUMNS = make_columns(
    cosine=Column(heading="cosine", digits=4),
    value=Column(heading="value", digits=4),
    sample_id="sample",
    row="row",
    text="prompt and answer",
)
"""Columns of the table of neighbours."""


def neighbours(
    pool: PoolLike,
    sample: str | Float32Array,
    count: int = COUNT,
    *,
    least: bool = False,
    descriptor: Descriptor | None = None,
    dimension: int | None = None,
    seed: int | None = None,
    scores: ScoreTable | None = None,
    score: ScoreSpec | None = None,
    listener: Listener = ignore,
) -> Finding:
    """Find the samples of a pool with the largest cosine to a sample (its id, or #ROW); with least, the smallest.

    Instead of a sample, the vectors of any trace may be given: (K+1, d), the answer last, from the signal's model.
    The search is exact and covers every done sample of the pool, except samples with a descriptor of zeros. Values and
    the step scores for the descriptor weighted come from scores; without scores, values are by the measure
    of score, or GRACE's default values.
    """
    if count < 1:
        raise SettingError(f"--neighbours {count} is below 1")
    if seed is not None and descriptor != "projected":
        raise SettingError("only --descriptor projected uses a seed: leave --seed out")
    pool = Pool.of(pool)
    if scores is not None:
        check_plan_of(scores.note, pool.store, scores.what)
    pool = scored_pool(pool, scores)
    # All samples are read because the given sample need not pass the filter.
    weights = scores if descriptor == "weighted" else None
    reader = DescriptionReader.of(
        Pool.of(pool, where=None), descriptor, dimension=dimension, seed=seed or 0, scores=weights
    )
    if isinstance(sample, str):
        place: int | None = (found_at := pool.store.find(sample))
        query = _descriptor_of(reader, found_at)
    else:
        place, query = None, _descriptor_of_trace(reader, sample)
    nearest = Nearest(query, count, least=least)
    for block in reader.blocks():
        some = ~block.is_zero if pool.wanted is None else ~block.is_zero & pool.wanted[block.sample]
        nearest.add(block.sample[some], block.vector[some], np.array([-1 if place is None else place]))
    points, cosines = (each[0] for each in nearest.found())
    there = points >= 0
    if not there.all() or len(points) < count:
        listener(Warned(f"Only {counted(int(there.sum()), 'other sample')} can be compared with this sample."))
    places = [*([] if place is None else [place]), *points[there].tolist()]
    samples = samples_at(reader.view, places, pool.data)
    values = np.full(len(samples), np.nan)
    if scores is not None:
        values = scores.values_of(np.array([each.row for each in samples], dtype=np.int64))
    elif score is not None or not reader.view.per_sample:
        spec = score or ScoreSpec()
        found = (_responses(pool.store, reader.view, place, spec) for place in places)
        values = np.array([trace_values(spec.measures[0], each)[0] for each in found])
    rows, missing_text = _rows(samples, values.tolist())
    asked: Mapping[str, Cell] = rows.pop(0) if place is not None else {}
    rows = [{"cosine": cosine, **row} for row, cosine in zip(rows, cosines[there].tolist(), strict=True)]
    by = str(reader.made_by["descriptor"])
    title = f"{'Least aligned' if least else 'Nearest'}, by {by} of {reader.view.name}"
    first = _least(rows) if least else _nearest(rows)
    return Finding(
        study="neighbours",
        pool=pool.note(reader.vectors),
        settings={"count": count, "least": least, "descriptor": by},
        conclusion=" ".join([first, *_questions(rows, asked), *_values(rows, asked)]),
        numbers={"sample_id": asked.get("sample_id"), "value": asked.get("value"), "signal": reader.view.name},
        tables={"neighbours": Table(title=title, columns=COLUMNS, rows=tuple(rows))},
        notes=() if missing_text is None else (f"Texts are not shown: {missing_text}",),
    )


def _rows(samples: Sequence[StoredSample], values: list[float]) -> tuple[list[dict[str, Cell]], str | None]:
    """Return rows of samples with values and texts, and the reason if texts are missing."""
    texts: list[tuple[str | None, str | None]] = [(None, None)] * len(samples)
    missing_text = None
    try:
        texts = [(each.prompt, each.segments[-1].strip()) for each in samples]
    except (DataError, OSError) as error:
        missing_text = str(error)
    return [
        {
            "value": value if math.isfinite(value) else None,
            "sample_id": each.sample_id,
            "row": each.row,
            "prompt": prompt,
            "answer": answer,
            "text": "" if prompt is None else f"{one_line(prompt)} -> {one_line(answer)}",
        }
        for each, value, (prompt, answer) in zip(samples, values, texts, strict=True)
    ], missing_text


def read_vectors(path: str | Path) -> Float32Array:
    """Read the vectors of one trace from a .npy file: (K+1, d) numbers, the answer last. No pickles."""
    try:
        vectors = np.load(path, allow_pickle=False)
    except FileNotFoundError:
        raise DataError(f"{path} does not exist. --vectors takes a file in the .npy format.") from None
    except (OSError, ValueError, EOFError) as error:
        # The message of numpy for another kind of file recommends to allow pickles, which is unsafe.
        why = f" ({error.strerror})" if isinstance(error, OSError) and error.strerror else ""
        raise DataError(
            f"{path} cannot be read as an array of numbers in the .npy format{why}. Write the array with `numpy.save`."
        ) from None
    if not isinstance(vectors, np.ndarray) or vectors.dtype.kind not in "fiu":
        raise DataError(f"{path} does not hold one array of numbers.")
    return vectors.astype(np.float32)


def _descriptor_of(reader: DescriptionReader, place: int) -> Float32Array:
    unit = reader.store.plan.unit_of(place)
    if unit not in reader.units:
        raise Unfinished(
            f"{reader.store.location}: the sample is in unit {unit} of {reader.view.name}, which is not done yet. "
            "Run `grace-store extract` again to finish it."
        )
    block = reader.read(unit)
    found = np.flatnonzero(block.sample == place)
    if not len(found):
        state = reader.view.state(place)
        raise DataError(
            f"The sample has no vectors in signal {reader.view.name!r}: the sample was set aside ({state})."
        )
    if block.is_zero[found[0]]:
        raise DataError("The sample's descriptor is zero, so all other samples are equally near.")
    return np.asarray(block.vector[found], dtype=np.float32)


def _descriptor_of_trace(reader: DescriptionReader, vectors: Float32Array) -> Float32Array:
    size, per_sample = reader.view.vector_size, reader.view.per_sample
    wanted = f"(1, {size}), the trace's own" if per_sample else f"(K+1, {size}), the answer's last"
    vectors = np.asarray(vectors, dtype=np.float32)
    if vectors.ndim != 2 or vectors.shape[1] != size or (len(vectors) != 1 if per_sample else len(vectors) < 2):
        raise DataError(
            f"The vectors have shape {vectors.shape}; signal {reader.view.name!r} of {reader.store.location} has "
            f"vectors {wanted}."
        )
    if not np.isfinite(vectors).all():
        raise DataError("The vectors hold numbers that are not finite.")
    vector, is_zero, _ = reader.describe_trace(vectors)
    if is_zero[0]:
        raise DataError("The descriptor of these vectors is zero, so all samples are equally near.")
    return vector


# ---------------------------------------------------------------- the conclusion


NO_OTHERS = "No other sample can be compared with it."


def _nearest(found: Sequence[Mapping[str, Any]]) -> str:
    if not found:
        return NO_OTHERS
    first = f"{found[0]['sample_id']} ({found[0]['cosine']:.4f})"
    num_same = sum(each["cosine"] >= DEFAULT_THRESHOLD for each in found)
    if not num_same:
        return f"No trace is nearly the same ({DEFAULT_THRESHOLD} or more): the nearest is {first}."
    are = "is" if num_same == 1 else f"and {counted(num_same - 1, 'other')} of the {len(found)} shown are"
    return f"The nearest trace, {first}, {are} nearly the same: `grace-store duplicates` finds all such samples."


def _least(found: Sequence[Mapping[str, Any]]) -> str:
    if not found:
        return NO_OTHERS
    first = f"{found[0]['sample_id']} ({found[0]['cosine']:.4f})"
    num_against = sum(each["cosine"] < 0 for each in found)
    if not num_against:
        return f"No trace pulls the other way: the least aligned is {first}."
    if num_against == 1:
        return f"One trace pulls the other way: {first}."
    many = f"All {len(found)}" if num_against == len(found) else f"{num_against} of the {len(found)}"
    return f"{many} shown pull the other way, {first} the most."


def _questions(found: Sequence[Mapping[str, Any]], asked: Mapping[str, Any]) -> list[str]:
    num_same = sum(each["prompt"] == asked["prompt"] for each in found) if asked.get("prompt") is not None else 0
    verb = "answers" if num_same == 1 else "answer"
    return [f"{num_same} of the {len(found)} {verb} the same question."] if num_same else []


def _values(found: Sequence[Mapping[str, Any]], asked: Mapping[str, Any]) -> list[str]:
    values = [each["value"] for each in found if each["value"] is not None]
    if not values:
        return []
    low, high = f"{min(values):.4f}", f"{max(values):.4f}"
    theirs = f"Values of those shown: {low} to {high}" if len(values) > 1 else f"Its value is {low}"
    own = "" if asked.get("value") is None else f"; that of {asked['sample_id']} is {asked['value']:.4f}"
    return [f"{theirs}{own}."]
