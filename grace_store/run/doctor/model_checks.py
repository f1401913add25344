"""Check that the model loads, accepts the samples, and gives the right gradients."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from grace_store.base.arrays import Float32Array, FloatArray, Int32Array
from grace_store.base.errors import SettingError
from grace_store.base.settings import ExtractSpec
from grace_store.base.text import counted
from grace_store.data.folders import default_image_folder
from grace_store.data.sample import Sample
from grace_store.run.doctor.data_checks import CheckResult, Seen, Verdict, num_chars
from grace_store.run.engines.engine import ExtractJob
from grace_store.run.extractor_protocol import Extractor, model_door, reference_of
from grace_store.store.storages import stored_form
from grace_store.values.methods.grace import score_grams
from grace_store.values.methods.method import ScoreSpec

NUM_FEW, FEW_CHARS = 8, 16_000
"""Number of samples to run in batches of several sizes, and their characters in total: a minute on a CPU."""
NUM_REFERENCE = 3
"""Number of samples to compare with autograd: the shortest ones."""
BATCH_LIMITS = {"float32": (1e-4, 1e-3), "bfloat16": (5e-2, 1e-1), "float16": (1e-2, 5e-2)}
"""Relative difference of vectors between batches above which to warn and to fail, by the model's dtype."""
STORAGE_WARNING = 2e-2
"""Change of a cosine between stored vectors above which to warn; scores do not depend on it."""


def examine_model(job: ExtractJob, seen: Seen) -> CheckResult:
    """Load the model, with the probes that every loading makes."""
    if job.model is None:
        raise SettingError("No model was given. Give the model to check with --model.")
    door = model_door(job.door)
    spec = door.resolve_spec(job.model, job.request, job.options, adapter=job.adapter)
    images = job.images or default_image_folder(job.data)
    seen.extractor = door.open_extractor(job.model, spec, job.options, adapter=job.adapter, images=images)
    seen.spec = spec
    text = f"{spec.model.architecture}, {spec.dtype}, {spec.attention} attention, vectors of {spec.model.hidden_size}"
    text += f", with {job.adapter}" if job.adapter else ""
    if (sharing := seen.extractor.sharing) is not None:
        text += ", prompts shared" if sharing.prompts else f"; prompts are not shared: {sharing.fault}"
    return CheckResult("model", "ok", text)


def examine_samples(job: ExtractJob, seen: Seen) -> CheckResult | None:
    """Count the samples with tokens and images that the model accepts."""
    if seen.extractor is None or not seen.samples:
        return None
    looked_at = _spread(seen.samples, 8 * NUM_FEW)
    set_aside = seen.extractor.prepare(looked_at).set_aside
    reasons = Counter(str(why.reason) for why in set_aside.values())
    # Leave the longest samples out until the others take little time; keep at least one.
    usable = sorted((sample for i, sample in enumerate(looked_at) if i not in set_aside), key=num_chars)
    choices = (_spread(usable[:stop], NUM_FEW) for stop in range(len(usable), 0, -1))
    seen.few = next((few for few in choices if sum(map(num_chars, few)) <= FEW_CHARS), usable[:1])
    seen.num_expected = round(seen.num_expected * (1 - len(set_aside) / len(looked_at)))
    what = "".join(f", {count} {reason}" for reason, count in reasons.most_common())
    text = f"{len(looked_at) - len(set_aside)} of {counted(len(looked_at), 'sample')} can be extracted{what}"
    figures = {"num_looked_at": len(looked_at), "num_set_aside": len(set_aside)}
    if not set_aside:
        return CheckResult("samples", "ok", text, "", figures)
    remedy = next(iter(set_aside.values())).detail
    verdict: Verdict = "fail" if not seen.few else "warn" if 20 * len(set_aside) > len(looked_at) else "ok"
    return CheckResult("samples", verdict, text, f"The first: {remedy}." if remedy else "", figures)


def examine_trainer(job: ExtractJob, seen: Seen) -> CheckResult | None:
    """Count the samples with images that a trainer prepares differently, or with another number of tokens."""
    shown = _spread([sample for sample in seen.samples if sample.images], 2 * NUM_FEW)
    if seen.extractor is None or seen.spec is None or not shown:
        return None
    if seen.spec.model.processor is None or seen.spec.text_only:
        return None
    own = seen.spec.images_as
    found = reference_of(job.door).shown_otherwise(seen.extractor, shown, own)
    others = "".join(
        f"; {name} prepares {counted(differ, 'sample')} differently, {other_tokens} with another number of tokens"
        for name, (differ, other_tokens) in found.items()
    )
    others = others or "; how trainers prepare images for this model is not known"
    text = f"images of {counted(len(shown), 'sample')} prepared as {own} does{others}"
    figures = {f"differ_from_{name}": differ for name, (differ, _) in found.items()}
    if "images_as" in job.request.model_fields_set or not any(figures.values()):
        return CheckResult("trainer", "ok", text, "", figures)
    remedy = "Give --images-as with the trainer that you will use. For TRL, use --images-as processor."
    return CheckResult("trainer", "warn", text, remedy, figures)


def _spread(samples: Sequence[Sample], count: int) -> list[Sample]:
    """Return some samples of evenly spread lengths, from the shortest to the longest."""
    ordered = sorted(samples, key=num_chars)
    places = np.unique(np.linspace(0, len(ordered) - 1, min(count, len(ordered))).round().astype(int))
    return [ordered[place] for place in places]


def examine_gradient(job: ExtractJob, seen: Seen) -> CheckResult | None:
    """Compare vectors with the gradients that autograd computes through the whole model."""
    if seen.extractor is None or seen.spec is None or not seen.few:
        return None
    reference = reference_of(job.door)
    shortest = seen.few[:NUM_REFERENCE]
    worst = 0.0
    for number, sample in enumerate(shortest):
        seen.progress(f"Comparing sample {number + 1} of {len(shortest)} with autograd.")
        worst = max(worst, reference.autograd_difference(seen.extractor, [sample]))
    limit = reference.TOLERANCE[seen.spec.dtype]
    text = f"vectors of {counted(len(shortest), 'sample')} differ from autograd's by {worst:.1e} (at most {limit:.0e})"
    figures = {"difference": worst, "limit": limit}
    if worst <= limit:
        return CheckResult("gradient", "ok", text, "", figures)
    other = _more_exact(seen.spec)
    remedy = f"Try {other}. If the check still fails, this model cannot be used." if other else "Use another model."
    return CheckResult("gradient", "fail", text, remedy, figures)


def _more_exact(spec: ExtractSpec) -> str:
    """Return the options, not yet in use, that may make vectors more exact."""
    options = {"--dtype float32": spec.dtype != "float32", "--attention eager": spec.attention != "eager"}
    return " or ".join(name for name, is_other in (options | {"--no-packing": spec.packing}).items() if is_other)


def examine_batches(job: ExtractJob, seen: Seen) -> CheckResult | None:
    """Check that a sample's vectors do not depend on the other samples in its batch."""
    if seen.extractor is None or seen.spec is None or not seen.few:
        return None
    groups = {size: _in_groups(seen, seen.extractor, size) for size in sorted({1, 2, len(seen.few)})}
    seen.alone, num_tokens = groups[1]
    norms = np.maximum(np.linalg.norm(seen.alone, axis=1), np.finfo(np.float32).tiny)
    apart = [np.linalg.norm(vectors - seen.alone, axis=1) / norms for vectors, _ in groups.values()]
    worst = max(float(each.max(initial=0.0)) for each in apart)
    values = [_values(seen.few, vectors, num_tokens) for vectors, _ in groups.values()]
    moved = float(np.max(np.ptp(np.stack(values), axis=0), initial=0.0))
    warn_at, fail_at = BATCH_LIMITS[seen.spec.dtype]
    text = (
        f"in batches of {', '.join(map(str, groups))} samples, vectors differ by {worst:.1e} and values by {moved:.1e} "
        f"({seen.spec.dtype}, {seen.spec.attention} attention)"
    )
    figures = {"difference": worst, "value_difference": moved, "limit": fail_at}
    verdict: Verdict = "ok" if worst <= warn_at else "warn" if worst <= fail_at else "fail"
    options = " or ".join(filter(None, [_more_exact(seen.spec), "--batch-tokens 1 (one sample at a time)"]))
    return CheckResult("batches", verdict, text, "" if verdict == "ok" else f"Use {options}.", figures)


def _in_groups(seen: Seen, extractor: Extractor, group: int) -> tuple[Float32Array, list[Int32Array]]:
    """Run a few samples in groups of a given size; return all vectors in order, and each sample's token counts."""
    vectors: list[Float32Array] = []
    num_tokens: list[Int32Array] = []
    for start in range(0, len(seen.few), group):
        some = seen.few[start : start + group]
        seen.progress(f"Running samples in batches of {group}: {start} of {len(seen.few)} done.")
        made: Any = extractor.compute(extractor.prepare(some)).result()
        vectors.append(made.segment_vector)
        num_tokens += np.split(made.segment_num_tokens, np.cumsum([sample.num_segments for sample in some])[:-1])
    return np.concatenate(vectors), num_tokens


def _values(samples: Sequence[Sample], vectors: Float32Array, num_tokens: Sequence[Int32Array]) -> FloatArray:
    stops = np.cumsum([sample.num_segments for sample in samples])
    parts = [rows.astype(np.float64) for rows in np.split(vectors, stops[:-1])]
    return score_grams([rows @ rows.T for rows in parts], num_tokens, ScoreSpec()).value


def examine_storage(job: ExtractJob, seen: Seen) -> CheckResult | None:
    """Measure how much the chosen storage changes cosines between the samples' vectors."""
    if seen.alone is None or seen.spec is None:
        return None
    exact, kept = (_cosines(vectors) for vectors in (seen.alone, stored_form(seen.alone, seen.spec.storage)))
    difference = np.abs(exact - kept)
    text = (
        f"{seen.spec.storage} changes cosines between vectors by {difference.mean():.1e} on average, at most "
        f"{difference.max():.1e}; scores come from exact Grams and do not change"
    )
    figures = {"mean": float(difference.mean()), "largest": float(difference.max())}
    if difference.max() > STORAGE_WARNING:
        remedy = "For duplicates and diversity, --storage int8 or float16 is more exact."
        return CheckResult("storage", "warn", text, remedy, figures)
    return CheckResult("storage", "ok", text, "", figures)


def _cosines(vectors: Float32Array) -> FloatArray:
    rows = vectors.astype(np.float64)
    rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-300)
    return np.asarray(rows @ rows.T)
