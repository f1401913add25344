"""A spec is a request and what is frozen at once: what was given counts, and no field can be forgotten."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from grace_store.base.errors import ResumeMismatch, SettingError
from grace_store.base.settings import DataSpec, ExtractSpec, GradientSpec, ModelIdentity, Spec, Whole
from grace_store.base.training_settings import TrainingSpec, WarmupSpec
from grace_store.cli.main import COMMANDS
from grace_store.run.extract import extract
from grace_store.run.open_signal import check_given
from grace_store.run.plan import check_request
from grace_store.store.opened import Store
from grace_store.study.trial_plan import check_same_trial
from grace_store.train.recipe import Recipe, check_recipe
from tests.example_notes import EXAMPLES, TRIAL_PLAN
from tests.fake_model import HIDDEN_SIZE
from tests.jobs import make_job

IDENTITY = ModelIdentity(
    architecture="Fake", hidden_size=HIDDEN_SIZE, vocab_size=7, config="0", weights="0", tokenizer="0"
)
TRAINING: dict[str, Any] = {
    "seed": 3,
    "rank": 4,
    "alpha": 8.0,
    "learning_rate": 1e-3,
    "warmup_ratio": 0.1,
    "schedule": "linear",
    "weight_decay": 0.0,
    "beta1": 0.8,
    "beta2": 0.9,
    "epsilon": 1e-6,
    "max_grad_norm": 2.0,
    "batch_size": 8,
    "rendering": "plain",
    "system": "Be brief.",
    "max_length": 512,
    "text_only": True,
    "images_as": "ms-swift",
    "min_pixels": 64,
    "max_pixels": 4096,
    "train_eos": False,
    "dtype": "bfloat16",
    "attention": "eager",
}
OTHER: dict[type[Spec], dict[str, Any]] = {
    DataSpec: {
        "format": "gsm8k",
        "splitter": "lines",
        "answer": "last",
        "min_steps": 3,
        "max_steps": 64,
        "map": {"prompt": "question"},
        "gather": True,
        "group_by": "id",
        "expand": "generations",
        "ignore_key": ("tools",),
    },
    GradientSpec: {
        "per": "segment",
        "preconditioner": "adam",
        "bias_correction": True,
        "projection": "sparse",
        "dimension": 16,
        "seed": 5,
        "normalise": False,
    },
    ExtractSpec: {
        "kind": "gradient",
        "gradient": GradientSpec(seed=5),
        "rendering": "verbatim",
        "system": "Be brief.",
        "include_eos": True,
        "max_length": 512,
        "text_only": True,
        "images_as": "ms-swift",
        "min_pixels": 64,
        "max_pixels": 4096,
        "dtype": "bfloat16",
        "attention": "eager",
        "batch_tokens": 100,
        "head_tokens": 100,
        "packing": True,
        "share_prompts": True,
        "storage": "int4",
        "token_table": False,
    },
    TrainingSpec: TRAINING,
    WarmupSpec: {**TRAINING, "ratio": "0.5", "num_heldout": 4, "checkpoints": ("0.5", "1"), "num_epochs": 2},
}
"""Of every setting that can be given, a value that is not the frozen one."""
FROZEN: dict[type[Spec], Spec] = {
    DataSpec: DataSpec(format="explicit", min_steps=2),
    GradientSpec: GradientSpec(dimension=HIDDEN_SIZE, normalise=True, parameters="0"),
    ExtractSpec: ExtractSpec(
        model=IDENTITY, rendering="plain", batch_tokens=9, head_tokens=9, packing=False, share_prompts=False
    ),
    TrainingSpec: TrainingSpec(model=IDENTITY, rendering="template"),
    WarmupSpec: WarmupSpec(model=IDENTITY, rendering="template"),
}
COMMANDS_OF = {
    DataSpec: ("plan", "extract", "warmup", "doctor"),
    GradientSpec: ("extract",),
    ExtractSpec: ("extract",),
    TrainingSpec: ("trial",),
    WarmupSpec: ("warmup",),
}


def each_setting(*specs: type[Spec]) -> list[Any]:
    return [pytest.param(spec, name, id=f"{spec.__name__}-{name}") for spec in specs for name in spec.can_give()]


def differing_lines(error: pytest.ExceptionInfo[ResumeMismatch]) -> list[str]:
    return [line.strip() for line in str(error.value).splitlines() if line.startswith("  ")]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A store with a signal of each kind, begun by the fake model."""
    folder = tmp_path_factory.mktemp("settings")
    extract(make_job(folder))
    gradient = ExtractSpec(kind="gradient")
    return extract(make_job(folder, signal="gradient", request=gradient)).store


@pytest.mark.parametrize("spec", OTHER)
def test_every_setting_has_another_value_here(spec):
    assert list(OTHER[spec]) == spec.can_give()
    assert spec.found.isdisjoint(OTHER[spec])
    assert {*spec.can_give(), *spec.found} == set(spec.model_fields)


@pytest.mark.parametrize("spec", OTHER)
def test_every_setting_is_an_option_of_its_commands(spec):
    names = {"gradient"} if spec is ExtractSpec else set()  # whose parts are options of their own
    for command in COMMANDS_OF[spec]:
        assert set(spec.can_give()) - names <= {parameter.name for parameter in COMMANDS[command].params}


@pytest.mark.parametrize(("spec", "name"), each_setting(*OTHER))
def test_a_setting_that_is_given_wins_over_the_frozen_one_and_changes_no_other(spec, name):
    frozen = FROZEN[spec]
    now = spec(**{name: OTHER[spec][name]}).over(frozen)
    assert getattr(now, name) == OTHER[spec][name] != getattr(frozen, name)
    for other in set(spec.can_give()) - {name}:
        assert getattr(now, other) == getattr(frozen, other)
    for found in spec.found:
        assert getattr(now, found) is None


@pytest.mark.parametrize("spec", OTHER)
def test_a_default_that_is_given_is_told_from_one_that_is_not(spec):
    frozen = FROZEN[spec].model_copy(update=OTHER[spec])
    for name, field in spec.model_fields.items():
        if name in OTHER[spec] and name not in spec.unresolved():
            default = field.get_default(call_default_factory=True)
            assert getattr(spec(**{name: default}).over(frozen), name) == default
            assert getattr(spec().over(frozen), name) == OTHER[spec][name]


@pytest.mark.parametrize(("spec", "name"), each_setting(DataSpec))
def test_a_plan_made_with_another_setting_is_refused_by_its_name(store, spec, name):
    check_request(store, DataSpec())
    with pytest.raises(ResumeMismatch, match="was planned with other settings") as error:
        check_request(store, DataSpec(**{name: OTHER[DataSpec][name]}))
    assert [line.partition(":")[0] for line in differing_lines(error)] == [name.replace("_", "-")]


@pytest.mark.parametrize(("spec", "name"), each_setting(ExtractSpec, GradientSpec))
def test_a_signal_begun_with_another_setting_is_refused_by_its_name(store, spec, name):
    view = store.signal("gradient" if spec is GradientSpec or name == "gradient" else "base")
    check_given(view, ExtractSpec())
    given = {name: OTHER[spec][name]}
    request = ExtractSpec(gradient=GradientSpec(**given)) if spec is GradientSpec else ExtractSpec(**given)
    with pytest.raises(ResumeMismatch, match="began with other settings") as error:
        check_given(view, request)
    said = {"gradient": "gradient seed"}.get(name, name.replace("_", "-"))
    expected = f"gradient {said}" if spec is GradientSpec else said
    assert [line.partition(":")[0] for line in differing_lines(error)] == [expected]


@pytest.mark.parametrize(("spec", "name"), each_setting(WarmupSpec))
def test_a_warmup_begun_with_another_setting_is_refused_by_its_name(spec, name):
    recipe = EXAMPLES["recipe of a warm-up"]
    assert isinstance(recipe, Recipe)
    begun = recipe.model_copy(update={"spec": FROZEN[WarmupSpec]})
    spec_now = WarmupSpec(**{name: OTHER[WarmupSpec][name]}).over(begun.spec).model_copy(update={"model": IDENTITY})
    check_recipe(begun, begun, Path("out"))
    with pytest.raises(ResumeMismatch, match="began with other settings") as error:
        check_recipe(begun, begun.model_copy(update={"spec": spec_now}), Path("out"))
    option = {"num_heldout": "heldout", "num_epochs": "epochs"}.get(name, name.replace("_", "-"))
    assert [line.partition(":")[0] for line in differing_lines(error)] == [option]


@pytest.mark.parametrize(("spec", "name"), each_setting(TrainingSpec))
def test_a_trial_begun_with_another_training_is_refused_by_its_name(spec, name):
    begun = TRIAL_PLAN.spec.training
    training = TrainingSpec(**{name: OTHER[TrainingSpec][name]}).over(begun).model_copy(update={"model": begun.model})
    now = TRIAL_PLAN.model_copy(update={"spec": TRIAL_PLAN.spec.model_copy(update={"training": training})})
    check_same_trial(TRIAL_PLAN, TRIAL_PLAN, Path("out"))
    with pytest.raises(ResumeMismatch, match="was begun with other settings") as error:
        check_same_trial(TRIAL_PLAN, now, Path("out"))
    assert [line.partition(":")[0] for line in differing_lines(error)] == [name.replace("_", "-")]


def test_a_run_with_no_settings_goes_on_and_with_the_default_it_was_not_begun_with_is_refused(tmp_path):
    extract(make_job(tmp_path, request=ExtractSpec(storage="int4")))
    assert extract(make_job(tmp_path)).signal.spec.storage == "int4"
    with pytest.raises(ResumeMismatch, match="storage: begun with int4, now int8"):
        extract(make_job(tmp_path, request=ExtractSpec(storage="int8")))


def test_a_signals_spec_is_a_request_for_the_same_with_another_model(store):
    spec = store.signal("base").signal.spec
    assert "model" not in spec.given()
    check_given(store.signal("base"), spec)


@pytest.mark.parametrize("spec", OTHER)
def test_documents_hold_whole_specs_only(spec):
    document = TypeAdapter(Whole[spec])
    whole = FROZEN[spec].model_dump(mode="json")
    assert document.validate_python(whole) == FROZEN[spec]
    for name in spec.unresolved():
        without = {key: value for key, value in whole.items() if key != name}
        assert getattr(spec(**without), name) is None
        with pytest.raises(ValidationError, match=f"{name} is missing"):
            document.validate_python(without)
        with pytest.raises(ValidationError, match=name):
            document.validate_python({**whole, name: None})


def test_a_gradient_inside_a_spec_is_whole_too():
    spec = FROZEN[ExtractSpec].model_copy(update={"kind": "gradient", "gradient": GradientSpec(seed=5)})
    with pytest.raises(SettingError, match=re.escape("normalise is missing; parameters is missing")):
        spec.whole()
