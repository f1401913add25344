"""One sample for a person: its text segment by segment, with everything the store knows of each."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from grace_store.base.errors import DataError
from grace_store.base.states import flag_names
from grace_store.pool.pool import Pool, PoolLike
from grace_store.pool.records import UnitLoader, open_dataset
from grace_store.run.status import check_planned, why_set_aside
from grace_store.store.opened import SignalView, Store
from grace_store.values.methods.grace import score_grams
from grace_store.values.score_spec import ScoreSpec


def inspect(pool: PoolLike, sample: str) -> dict[str, Any]:
    """Return a sample (its id, or #ROW) as sample_view does, scored by the defaults, and why it was set aside.

    Before there is any signal it is only planned: its text, split, without values. The pool says which signal is meant
    and where the dataset is; a sample that its filter leaves out is shown all the same.
    """
    pool = Pool.of(pool)
    store = pool.store
    check_planned(store, sample)
    if not pool.signals and not store.signal_names:
        return planned_view(store, store.find(sample), pool.data) | {"why_set_aside": None}
    view = pool.signal
    shown = sample_view(view, store.find(sample), ScoreSpec(), pool.data)
    return shown | {"why_set_aside": why_set_aside(view, shown["sample"]) or None}


def planned_view(store: Store, sample: int, data: Sequence[str | Path] | None = None) -> dict[str, Any]:
    """Return a sample as it was planned: where it lies, and its text by segments if the dataset is there."""
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
    view: SignalView, sample: int, spec: ScoreSpec, data: Sequence[str | Path] | None = None
) -> dict[str, Any]:
    """Return a sample's segments with all signals; the texts are None if the dataset is out of reach."""
    result = planned_view(view.store, sample, data) | {"signal": view.name, "state": view.state(sample)}
    if result["state"] == "done" and not view.per_sample:
        found = _signals(view, sample, spec, [segment["text"] for segment in result["segments"]])
        return result | found | {"flags": found["flags"] + (result["flags"] or [])}
    if result["state"] == "done":  # one vector for the sample: there are no steps to score
        numbers = {name: float(view.sample_value(f"sample_{name}", sample)) for name in ("loss", "norm")}
        result |= {"value": None, "num_tokens": int(view.sample_value("sample_num_tokens", sample)), **numbers}
    return result


def _signals(view: SignalView, sample: int, spec: ScoreSpec, texts: list[str]) -> dict[str, Any]:
    gram = view.gram(sample)
    num_tokens = view.segments("segment_num_tokens", sample)
    scores = score_grams([gram], [num_tokens], spec)
    columns = {name: view.segments(f"segment_{name}", sample) for name in ("span", "loss", "entropy", "hit_rate")}
    num_segments = len(num_tokens)
    segments = []
    for i in range(num_segments):
        is_step = i < num_segments - 1
        segments.append(
            {
                "name": f"step {i + 1}" if is_step else "answer",
                "text": texts[i] if texts else None,
                "span": columns["span"][i].tolist(),
                "num_tokens": int(num_tokens[i]),
                **{name: float(columns[name][i]) for name in ("loss", "entropy", "hit_rate")},
                "norm": float(gram[i, i] ** 0.5),
                "answer_alignment": float(scores.answer_alignment[i]) if is_step else None,
                "history_alignment": float(scores.history_alignment[i]) if is_step and i > 0 else None,
                "step_score": float(scores.step_score[i]) if is_step else None,
            }
        )
    flags = flag_names(int(scores.flags[0]))
    return {"value": float(scores.value[0]), "flags": flags, "segments": segments, "gram": gram.tolist()}
