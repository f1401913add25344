"""Models whose positions depend on the longest sample of a batch: no sample's numbers may."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import transformers
from hypothesis import given
from hypothesis import strategies as st

from grace_store.base.settings import ExtractSpec
from grace_store.model.backbone import find_length_rule
from grace_store.model.inputs.batches import ANY_LENGTHS, ONE_AT_A_TIME, LengthRule, form_batches, form_packs
from grace_store.model.load.weights import load
from grace_store.model.open_model import open_extractor, resolve_spec
from tests.autograd import ONE_THREAD, extract, open_tiny, relative, text_truth
from tests.gradients import make_adapter, open_gradient
from tests.tiny_models import FAMILIES, scaled_positions_model, tiny_text_model
from tests.tiny_vision_models import tiny_vision_model
from tests.traces import TEXTS, make_sample

LIMIT = 40
SAMPLES = [
    *TEXTS,
    make_sample("word one two three.\n" * 6, "It is 7.\n", "So 8."),
    make_sample("Add.\n", "8", prompt="3 + 5?"),
    make_sample("word one two three.\n" * 3, "It is 7.\n", "So 8."),
]
SCALINGS = ["longrope", "dynamic", "longrope of one kind of layer", "longrope with its own scale"]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    root = tmp_path_factory.mktemp("lengths")
    made: dict[str, Path] = {}

    def make(scaling: str) -> Path:
        if scaling not in made:
            made[scaling] = scaled_positions_model(scaling, root / scaling.replace(" ", "-"), limit=LIMIT)
        return made[scaling]

    return make


def truth(folder: Path) -> np.ndarray:
    """Return the vectors of every sample, each by autograd of a model that nothing went through before."""
    _, extractor = open_tiny(folder)
    fresh = transformers.AutoModelForCausalLM.from_pretrained
    return np.concatenate([text_truth(fresh(folder).eval(), extractor, sample)[0] for sample in SAMPLES])


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("packing", [False, True], ids=["padded", "packed"])
def test_vectors_are_those_of_each_sample_alone(models, scaling, packing):
    folder = models(scaling)
    expected = truth(folder)
    spec = resolve_spec(str(folder), ExtractSpec(packing=packing), ONE_THREAD)
    extractor = open_extractor(str(folder), spec, ONE_THREAD)
    lengths = [tokens.num_tokens for tokens in extractor.prepare(SAMPLES).tokens.values()]
    assert min(lengths) < LIMIT < max(lengths)
    found = extract(extractor, SAMPLES).segment_vector
    assert relative(found, expected) < 4e-6
    # What went through before leaves no trace, in whatever order.
    bounds = np.cumsum([sample.num_segments for sample in SAMPLES])[:-1]
    for order in ([3, 0, 1, 2, 4, 5], [5, 4, 3, 2, 1, 0]):
        again = [extract(extractor, [SAMPLES[position]]).segment_vector for position in order]
        for position, vectors in zip(order, again, strict=True):
            assert relative(vectors, np.split(expected, bounds)[position]) < 4e-6


@pytest.mark.parametrize("scaling", SCALINGS)
def test_a_batch_size_changes_nothing(models, scaling):
    folder = models(scaling)
    _, usual = open_tiny(folder)
    _, small = open_tiny(folder, batch_tokens=60)
    assert relative(extract(small, SAMPLES).segment_vector, extract(usual, SAMPLES).segment_vector) < 4e-6


@pytest.mark.parametrize("scaling", ["longrope", "dynamic"])
def test_gradients_do_not_depend_on_batch_mates_either(models, scaling, tmp_path):
    folder = models(scaling)
    adapter = make_adapter(folder, tmp_path / "adapter")
    together = open_gradient(folder, adapter, dimension=8, normalise=False)
    alone = open_gradient(folder, adapter, ExtractSpec(batch_tokens=1), dimension=8, normalise=False)
    expected = alone.compute(alone.prepare(SAMPLES)).result().sample_vector
    assert relative(together.compute(together.prepare(SAMPLES)).result().sample_vector, expected) < 1e-5


# ---------------------------------------------------------------- what the model is found to do


@pytest.mark.parametrize(
    ("scaling", "rule"),
    [
        ("longrope", LengthRule(LIMIT + 1)),
        ("longrope of one kind of layer", LengthRule(LIMIT + 1)),
        ("longrope with its own scale", LengthRule(LIMIT + 1)),
        ("dynamic", LengthRule(LIMIT + 1, grows=True)),
    ],
)
def test_the_length_where_positions_change_is_found(models, scaling, rule):
    loaded = load(models(scaling), "float32", "sdpa", "cpu", 1)
    assert find_length_rule(loaded.model, 4096) == rule
    assert find_length_rule(loaded.model, LIMIT) == ANY_LENGTHS, "no sample is longer"


@pytest.mark.parametrize("family", FAMILIES)
def test_other_models_take_any_lengths_together(tmp_path, family):
    loaded = load(tiny_text_model(family, tmp_path / family), "float32", "eager", "cpu", 1)
    assert find_length_rule(loaded.model, loaded.longest(4096)) == ANY_LENGTHS


def test_where_images_shorten_positions_every_sample_runs_alone(tmp_path):
    scaling = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0, "mrope_section": [2, 2, 2]}
    folder = tiny_vision_model(
        "qwen2_vl", tmp_path / "m", text={"rope_parameters": scaling, "max_position_embeddings": LIMIT}
    )
    loaded = load(folder, "float32", "sdpa", "cpu", 1)
    assert find_length_rule(loaded.model, 4096) == ONE_AT_A_TIME


RULES = [ANY_LENGTHS, ONE_AT_A_TIME, LengthRule(20), LengthRule(20, grows=True)]


@given(st.lists(st.integers(1, 60), max_size=30), st.integers(1, 200), st.sampled_from(RULES))
def test_batches_hold_every_sample_once_and_never_mix_kinds(lengths, batch_tokens, rule):
    for form in (form_batches, form_packs):
        batches = form(lengths, batch_tokens, rule)
        assert sorted(itertools.chain(*batches)) == list(range(len(lengths)))
        assert all(len({rule.kind_of(lengths[position]) for position in batch}) == 1 for batch in batches)
        assert not rule.alone or all(len(batch) == 1 for batch in batches)
