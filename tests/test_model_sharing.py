"""Samples of one prompt run it once: the same vectors as by themselves, and left off where a model cannot."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import grace_store.model.backbone as own_forward
import grace_store.model.shared_pass as image_features
import grace_store.model.shared_pass as shared_pass
import grace_store.model.unit_extractor as unit_extractor
from grace_store.base.errors import DeviceLost, OutOfMemory, SettingError
from grace_store.base.settings import ExtractSpec
from grace_store.data.sample import Sample
from grace_store.model.inputs.batches import LOOK_BACK, PromptLengths, form_passes, form_shared
from grace_store.model.inputs.collate import find_groups
from grace_store.model.inputs.tokens import TokenizedSample
from grace_store.model.open_model import open_extractor, probe_images, probe_prompts, resolve_spec
from tests.autograd import ONE_THREAD, relative
from tests.tiny_models import FAMILIES, scaled_positions_model, tiny_text_model
from tests.tiny_vision_models import tiny_vision_model
from tests.traces import ask_about, make_sample

PROMPT = "Tom has 3 apples and buys 4 more. How many apples does he have now? "
TOLERANCE = 1e-5


def responses(number: int) -> tuple[str, ...]:
    steps = [f"Step {step}: we add {number} and {step}.\n" for step in range(1 + 5 * number % 6)]
    return (*steps, f"The answer is {number}.")


def traces(prompts: list[tuple[str, ...]], each: int = 4) -> list[Sample]:
    """Return traces of some prompts in turns, of differing lengths, and one of a prompt that no other has."""
    several = [ask_about(*prompts[n % len(prompts)], response=responses(n)) for n in range(each * len(prompts))]
    return [*several, ask_about("Alone?", response=responses(3))]


TEXTS = traces([(PROMPT,), (2 * PROMPT,), (PROMPT + "And then?",)])
WITH_PICTURES = traces(
    [("wide", "How many apples?"), ("Look:", "tall", " and ", "square", ". Which?"), (PROMPT,), ("wide", "Which?")], 3
)


def make(model: str, **wishes: Any) -> Any:
    return open_extractor(model, resolve_spec(model, ExtractSpec(**wishes), ONE_THREAD), ONE_THREAD)


def extract(extractor: Any, samples: list[Sample]) -> Any:
    return extractor.compute(extractor.prepare(samples)).result()


def check_same(model: str, samples: list[Sample], **wishes: Any) -> None:
    extractor = make(model, **wishes)
    assert extractor.sharing.prompts, extractor.sharing.fault
    batches = extractor.prepare(samples).batches
    assert any(batch.shared is not None and len(batch.shared.groups) > 1 for batch in batches)
    assert sorted(member for batch in batches for member in batch.members) == list(range(len(samples)))
    found, expected = extract(extractor, samples), extract(make(model, **wishes, share_prompts=False), samples)
    assert relative(found.segment_vector, expected.segment_vector) < TOLERANCE
    np.testing.assert_array_equal(found.segment_num_tokens, expected.segment_num_tokens)
    np.testing.assert_allclose(found.segment_loss, expected.segment_loss, rtol=1e-4, atol=1e-6)
    assert (found.num_tokens, found.images_sha256) == (expected.num_tokens, expected.images_sha256)


# ---------------------------------------------------------------- the same numbers


@pytest.mark.parametrize("family", FAMILIES)
def test_texts_of_one_prompt_have_the_vectors_of_each_by_itself(tmp_path, family):
    check_same(str(tiny_text_model(family, tmp_path / family)), TEXTS)


@pytest.mark.parametrize("family", ["qwen3", "mistral", "gpt2"])
def test_also_with_the_other_kernel(tmp_path, family):
    check_same(str(tiny_text_model(family, tmp_path / family)), TEXTS, attention="eager")


@pytest.mark.parametrize("family", ["qwen3_vl", "qwen2_5_vl", "llava", "llava_next", "internvl", "gemma3"])
def test_prompts_with_images_too(tmp_path, family):
    check_same(str(tiny_vision_model(family, tmp_path / family)), WITH_PICTURES)


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    return str(tiny_text_model("qwen3", tmp_path_factory.mktemp("model") / "qwen3"))


def test_responses_in_several_passes_have_the_same_vectors(model):
    expected = extract(make(model, share_prompts=False), TEXTS)
    extractor = make(model, batch_tokens=150)
    assert max(len(batch.shared.passes) for batch in extractor.prepare(TEXTS).batches if batch.shared) > 1
    assert relative(extract(extractor, TEXTS).segment_vector, expected.segment_vector) < TOLERANCE


def test_a_prompt_and_its_images_run_once_for_all_its_traces(tmp_path, monkeypatch):
    model = str(tiny_vision_model("qwen3_vl", tmp_path / "qwen3_vl"))
    samples, extractor = WITH_PICTURES[0::4][:3], make(model)
    seen = []
    monkeypatch.setattr(extractor.model.model.visual, "forward", _counted(extractor.model.model.visual.forward, seen))
    extract(extractor, samples)
    (batch,) = extractor.prepare(samples).batches
    assert [tuple(grid.shape) for grid in seen] == [(1, 3)], "three traces of one image"
    assert batch.inputs["input_ids"].shape[0] == 1


def _counted(actual: Any, seen: list[Any]) -> Any:
    def run(pixels: Any, grid_thw: Any, **others: Any) -> Any:
        seen.append(grid_thw)
        return actual(pixels, grid_thw=grid_thw, **others)

    return run


IN_COMMON = [("wide", "How many?"), ("Look:", "tall", "wide", "?"), ("wide", "square", "?"), ("square", "tall", "?")]
"""Prompts of three images in all; no two prompts have the same."""


def about_images(prompts: list[tuple[str, ...]]) -> list[Sample]:
    return [ask_about(*each, response=responses(number)) for number, each in enumerate(prompts)]


def counting_runs(extractor: Any, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    made: list[Any] = []
    actual = extractor.tower.run
    monkeypatch.setattr(extractor.tower, "run", lambda images: made.append(images) or actual(images))
    return made


@pytest.mark.parametrize(
    # LLaVA-NeXT fills an image up to as many tiles as the largest beside it has: two of the images have two forms.
    ("family", "num_runs"),
    {"qwen3_vl": 3, "qwen2_5_vl": 3, "llava": 3, "gemma3": 3, "llava_next": 5}.items(),
)
def test_each_image_goes_through_the_tower_once_for_all_prompts_of_a_unit(tmp_path, monkeypatch, family, num_runs):
    model = str(tiny_vision_model(family, tmp_path / family))
    samples, extractor = about_images(IN_COMMON), make(model, batch_tokens=150)
    assert extractor.sharing.images == "image", extractor.sharing.images_fault
    made = counting_runs(extractor, monkeypatch)
    assert len(extractor.prepare(samples).batches) > 1
    found, expected = extract(extractor, samples), extract(make(model, share_prompts=False), samples)
    assert len(made) == num_runs
    assert relative(found.segment_vector, expected.segment_vector) < TOLERANCE


def test_images_whose_inputs_nobody_can_tell_apart_stay_together(tmp_path, monkeypatch):
    model = str(tiny_vision_model("internvl", tmp_path / "internvl"))
    extractor = make(model)
    assert (extractor.sharing.prompts, extractor.sharing.images) == (True, "sample")
    assert "inputs cannot be assigned to its images" in extractor.sharing.images_fault
    samples, made = about_images([*IN_COMMON, (*IN_COMMON[1], " So?")]), counting_runs(extractor, monkeypatch)
    found, expected = extract(extractor, samples), extract(make(model, share_prompts=False), samples)
    assert len(made) == 4, "a batch with images that several prompts have makes them sample by sample"
    assert relative(found.segment_vector, expected.segment_vector) < TOLERANCE


def test_images_that_see_each_other_are_not_made_apart(tmp_path):
    extractor = make(str(tiny_vision_model("llava", tmp_path / "llava")))
    tower = extractor.model.model.vision_tower
    assert probe_images(extractor, torch.device("cpu"))[0] == "image"
    tower.register_forward_pre_hook(lambda _, given: tuple(each + 0.1 * each.mean(dim=0) for each in given))
    shared, (difference, fault) = probe_images(extractor, torch.device("cpu"))
    assert shared is None
    assert "hidden states with separate image features differ" in fault
    assert difference > extractor.sharing.allowed


def test_signals_begun_before_images_were_told_apart_have_the_images_of_a_sample_together(tmp_path, monkeypatch):
    extractor = make(str(tiny_vision_model("llava", tmp_path / "llava")), batch_tokens=150)
    extractor.share_as(extractor.sharing.model_copy(update={"images": "sample"}))
    made = counting_runs(extractor, monkeypatch)
    extract(extractor, about_images([*IN_COMMON, (*IN_COMMON[1], " So?")]))
    assert [len(images["pixel_values"]) for images in made] == [2]


def test_features_beyond_the_room_for_them_are_made_again(tmp_path, monkeypatch):
    model = str(tiny_vision_model("qwen3_vl", tmp_path / "qwen3_vl"))
    samples = [ask_about("wide", f"How many of {n}?", response=responses(n)) for n in range(3)]
    expected = extract(make(model), samples)
    monkeypatch.setattr(image_features, "MOST_BYTES", 1)
    assert relative(extract(make(model), samples).segment_vector, expected.segment_vector) < TOLERANCE


# ---------------------------------------------------------------- where memory runs out, or a sample fails


def test_a_shared_batch_that_does_not_fit_is_split_and_says_so(model, monkeypatch):
    extractor = make(model)
    whole = extract(extractor, TEXTS)
    actual = own_forward.run_backbone

    def scarce(model, **inputs):
        if inputs["input_ids"].shape[0] > 3:
            raise torch.OutOfMemoryError("out of memory")
        return actual(model, **inputs)

    monkeypatch.setattr(own_forward, "run_backbone", scarce)
    found = extract(extractor, TEXTS)
    assert whole.split is None
    assert sum(found.split) == len(TEXTS)
    assert max(found.split) <= 3
    assert relative(found.segment_vector, whole.segment_vector) < TOLERANCE


def test_kept_features_make_room_before_a_batch_is_split(tmp_path, monkeypatch):
    extractor = make(str(tiny_vision_model("qwen3_vl", tmp_path / "qwen3_vl")), batch_tokens=60)
    samples = [ask_about("wide", f"How many of {n}?", response=responses(n)) for n in range(3)]
    whole, kept, refused = extract(extractor, samples), [], []

    def keep(*given: Any) -> Any:
        kept.append(image_features.KeptFeatures(*given))
        return kept[-1]

    def scarce(*_: Any) -> None:
        if kept[-1].num_bytes:
            refused.append(kept[-1].num_bytes)
            raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr(unit_extractor, "KeptFeatures", keep)
    extractor.model.model.language_model.register_forward_pre_hook(scarce)
    found = extract(extractor, samples)
    assert len(refused) == 1, "none are kept once memory ran out"
    assert found.split is None
    assert relative(found.segment_vector, whole.segment_vector) < TOLERANCE


def test_a_response_the_model_fails_on_is_set_aside_and_no_other_of_its_prompt(model, monkeypatch):
    extractor = make(model)
    whole = extract(extractor, TEXTS)
    marked = " ".join(map(str, extractor.prepare(TEXTS).tokens[4].ids[-8:].tolist()))
    actual = own_forward.run_backbone

    def failing(model, **inputs):
        if any(f" {marked} " in f" {' '.join(map(str, row.tolist()))} " for row in inputs["input_ids"]):
            raise IndexError("index 7 is out of range")
        return actual(model, **inputs)

    monkeypatch.setattr(own_forward, "run_backbone", failing)
    found = extract(extractor, TEXTS)
    assert list(found.set_aside) == [4]
    rows = np.repeat(np.arange(len(TEXTS)) != 4, [sample.num_segments for sample in TEXTS])
    assert relative(found.segment_vector[rows], whole.segment_vector[rows]) < TOLERANCE


# ---------------------------------------------------------------- where it does not hold


RECURRENT: dict[str, tuple[str, dict[str, Any]]] = {
    "mamba": ("Mamba", {"hidden_size": 48, "num_hidden_layers": 2, "state_size": 8}),
    "lfm2": (
        "Lfm2",
        {**FAMILIES["llama"][1], "layer_types": ["conv", "full_attention"]},
    ),
}


@pytest.mark.parametrize("family", RECURRENT)
def test_a_state_that_runs_through_all_tokens_is_not_shared(tmp_path, monkeypatch, caplog, family):
    monkeypatch.setitem(FAMILIES, family, RECURRENT[family])
    extractor = make(str(tiny_text_model(family, tmp_path / family)))
    assert not extractor.sharing.prompts
    assert extractor.sharing.fault
    assert "prompts are not shared" in caplog.text
    assert all(batch.shared is None for batch in extractor.prepare(TEXTS).batches)


@pytest.mark.parametrize("scaling", ["dynamic", "longrope"])
def test_positions_that_depend_on_the_whole_length_are_not_shared(tmp_path, scaling):
    extractor = make(str(scaled_positions_model(scaling, tmp_path / scaling, limit=32)))
    assert "length of the whole sample" in extractor.sharing.fault
    assert not extractor.sharing.prompts


def test_hidden_states_that_depend_on_what_shares_the_pass_are_noticed(model, monkeypatch):
    extractor = make(model)
    assert probe_prompts(extractor, 512, with_images=False)[1] is None
    actual = own_forward.run_backbone

    def counts_tokens(model, **inputs):
        made = actual(model, **inputs)
        made.last_hidden_state = made.last_hidden_state * (1 + 1e-3 * inputs["input_ids"].shape[1])
        return made

    monkeypatch.setattr(own_forward, "run_backbone", counts_tokens)
    assert "hidden states of responses differ" in probe_prompts(extractor, 512, with_images=False)[1]


def failing(error: Exception) -> Callable[..., None]:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    return fail


def test_a_probe_without_enough_memory_says_nothing_about_the_model(model, monkeypatch):
    extractor = make(model)
    for error in (torch.OutOfMemoryError("CUDA out of memory"), OutOfMemory("One sample alone"), DeviceLost("Is lost")):
        monkeypatch.setattr(shared_pass, "_shifted", failing(error))
        with pytest.raises(type(error), match=str(error)):
            probe_prompts(extractor, 512, with_images=False)


def test_users_are_told_what_helps_where_the_probe_does_not_fit_into_memory(model, monkeypatch):
    monkeypatch.setattr(shared_pass, "_shifted", failing(torch.OutOfMemoryError("CUDA out of memory")))
    with pytest.raises(OutOfMemory, match=r"larger or less busy device, .* --no-share-prompts.*CUDA out of memory"):
        make(model)


def test_nor_does_one_of_images(tmp_path, monkeypatch):
    extractor = make(str(tiny_vision_model("qwen2_5_vl", tmp_path / "model")))
    monkeypatch.setattr(image_features.VisionTower, "run", failing(torch.OutOfMemoryError("CUDA out of memory")))
    with pytest.raises(torch.OutOfMemoryError, match="CUDA out of memory"):
        probe_images(extractor, torch.device("cpu"))


def test_prompts_that_do_not_end_together_are_noticed(model, monkeypatch):
    extractor = make(model)
    monkeypatch.setattr(shared_pass, "_shifted", lambda states, shift: states)
    assert "hidden states of responses differ" in probe_prompts(extractor, 512, with_images=False)[1]


def test_a_window_is_tried_from_both_sides(tmp_path, monkeypatch):
    """As a cache would that forgets what lies beyond the model's window and more."""
    extractor = make(str(tiny_text_model("mistral", tmp_path / "mistral")))
    actual = shared_pass._PromptLayer._before

    def forgets(layer: Any, of_prompts: Any, following: Any) -> Any:
        kept = torch.cat((torch.zeros_like(of_prompts[..., :-12, :]), of_prompts[..., -12:, :]), dim=-2)
        return actual(layer, kept, following)

    monkeypatch.setattr(shared_pass._PromptLayer, "_before", forgets)
    assert "hidden states of responses differ" in probe_prompts(extractor, 512, with_images=False)[1]
    assert probe_prompts(extractor, 20, with_images=False)[1] is None, "no sample is as long as the window"


# ---------------------------------------------------------------- settings


def test_sharing_is_on_for_proxies_and_excludes_packing(model):
    assert resolve_spec(model, ExtractSpec(), ONE_THREAD).share_prompts is True
    assert resolve_spec(model, ExtractSpec(packing=True), ONE_THREAD).share_prompts is False
    with pytest.raises(SettingError, match="--share-prompts and --packing cannot be used together"):
        resolve_spec(model, ExtractSpec(packing=True, share_prompts=True), ONE_THREAD)


def test_a_spec_cannot_have_both(model):
    spec = resolve_spec(model, ExtractSpec(), ONE_THREAD)
    with pytest.raises(SettingError, match="cannot be used together"):
        ExtractSpec(**{**spec.model_dump(), "packing": True}).whole()


# ---------------------------------------------------------------- which samples share


def test_only_prompts_of_the_same_tokens_and_images_are_one(model):
    def tokens(*ids: int) -> TokenizedSample:
        return TokenizedSample(np.array(ids), np.array([-1] * 4 + [0] * (len(ids) - 4)), 1)

    several = dict(enumerate([tokens(1, 2, 3, 4, 5), tokens(1, 2, 3, 4, 6, 7), tokens(1, 2, 9, 4, 5)]))
    assert find_groups(several, {}, ()) == [[0, 1], [2]]
    assert find_groups(several, {0: ("a",), 1: ("b",)}, ()) == [[0], [1], [2]]
    assert find_groups(several, {}, {4}) == [], "an image must not be cut in two"


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 40), st.lists(st.integers(1, 50), min_size=1, max_size=6)), max_size=8),
    st.integers(1, 120),
)
def test_batches_hold_each_sample_of_a_shared_group_once_and_no_more_than_fits(prompts, batch_tokens):
    number = itertools.count()
    groups = [[next(number) for _ in each] for _, each in prompts]
    prompt = {i: length for (length, _), group in zip(prompts, groups, strict=True) for i in group}
    response = dict(enumerate(length for _, each in prompts for length in each))
    lengths = PromptLengths(prompt, response)
    batches = form_shared(groups, lengths, batch_tokens)
    formed = [(batch, form_passes(batch, lengths, batch_tokens)) for batch in batches]
    placed = [i for _, passes in formed for each in passes for i in each]
    assert sorted(placed) == sorted(i for batch, _ in formed for group in batch for i in group)
    assert len(placed) == len(set(placed))
    for batch, passes in formed:
        longest = max(prompt[group[0]] for group in batch)
        assert len(batch) * longest <= batch_tokens or len(batch) == 1
        for members in passes:
            widest = max(response[i] for i in members)
            assert len(members) == 1 or len(members) * widest <= batch_tokens
            assert len(members) == 1 or len(members) * (longest + widest) <= LOOK_BACK * batch_tokens


def test_without_groups_batches_are_what_they_were(model):
    different = [make_sample(*responses(n), prompt=f"{PROMPT}{n}") for n in range(6)]
    shared, plain = make(model).prepare(different), make(model, share_prompts=False).prepare(different)
    assert [batch.members for batch in shared.batches] == [batch.members for batch in plain.batches]
    assert all(batch.shared is None for batch in shared.batches)
