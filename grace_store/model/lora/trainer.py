"""The door to training: from wishes to a whole spec, and from a spec to a model that can be trained."""

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

from grace_store.base.arrays import FloatArray
from grace_store.base.errors import SettingError
from grace_store.base.events import Listener
from grace_store.base.settings import ExtractRequest, Rendering, RunOptions, wishes_in
from grace_store.base.states import SetAside
from grace_store.data.sample import Sample
from grace_store.model import devices
from grace_store.model.door import resolve_spec
from grace_store.model.inputs.render import Renderer
from grace_store.model.inputs.tokens import SampleTokenizer
from grace_store.model.inputs.vision import image_mark
from grace_store.model.load.weights import ModelDescription, describe_model, load
from grace_store.model.lora.ranks import as_one_of
from grace_store.model.lora.recipe import (
    Ranks,
    TrainingRequest,
    TrainingSpec,
    WarmupOptions,
    WarmupRequest,
    WarmupSpec,
)
from grace_store.model.lora.step_loop import StepLoop, TrainingSet, checkpoint_steps
from grace_store.model.lora.training import AdapterTrainer
from grace_store.model.lora.training_data import TrainingEncoder, TrainingSample, weigh

__all__ = ["Training", "TrainingSample", "TrainingSet", "Warmup", "resolve_training", "resolve_warmup", "weigh"]


def resolve_warmup(model: str, request: WarmupRequest, options: WarmupOptions) -> WarmupSpec:
    """Return the spec of a warm-up, choosing what was not said for model and device; reads weights for digests only."""
    return WarmupSpec(**_resolved(model, request, options))


def resolve_training(model: str, request: TrainingRequest, options: WarmupOptions) -> TrainingSpec:
    """Return how an adapter is trained, choosing what was not said likewise."""
    return TrainingSpec(**_resolved(model, request, options))


def _resolved(model: str, request: TrainingRequest, options: WarmupOptions) -> dict[str, Any]:
    shared = {name: wish for name, wish in wishes_in(request).items() if name in ExtractRequest.model_fields}
    reading = resolve_spec(model, ExtractRequest(**shared), RunOptions(device=options.device))
    chosen = {name: getattr(reading, name) for name in ("model", "rendering", "dtype", "attention")}
    chosen["train_eos"] = _resolve_eos(request.train_eos, reading.rendering, describe_model(model))
    return {**wishes_in(request), **chosen}


def _resolve_eos(wish: bool | None, rendering: Rendering, described: ModelDescription) -> bool:
    """Return whether the end of the turn is learnt: as asked, else if there is one."""
    if wish is False:
        return False
    mark = None if described.processor is None else image_mark(described.processor)
    renderer = Renderer(described.tokenizer, rendering, system=None, text_only=True, include_eos=True, image_mark=mark)
    limits = {"max_length": 2, "vocab_size": 1}
    tokenizer = SampleTokenizer(described.tokenizer, add_special_tokens=False, include_eos=True, **limits)
    has_end = tokenizer.has_marker(renderer.suffix)
    if wish and not has_end:
        raise SettingError("--train-eos has no meaning: nothing that ends a turn follows a response. Leave it out.")
    return has_end


class Training:
    """A model loaded to be trained as a spec says, any number of times, as one rank of several."""

    def __init__(
        self,
        model: str,
        spec: TrainingSpec,
        options: WarmupOptions,
        ranks: Ranks | None = None,
        images: str | None = None,
    ) -> None:
        self._model_path = model
        self._spec = spec
        self._options = options
        self._ranks = ranks or Ranks()
        devices.prepare_same_every_time()
        device = devices.of_rank(options.device, self._ranks.local_rank)
        self._loaded = load(describe_model(model), spec.dtype, spec.attention, device, options.threads)
        self._images = images
        self._encoders: dict[str | None, TrainingEncoder] = {}
        self._trainer: AdapterTrainer | None = None

    def encode(self, samples: Sequence[Sample], images: str | None = None) -> list[TrainingSample | SetAside]:
        """Return each sample's tokens, or why it cannot be trained on.

        images is the folder that these samples' relative paths start from, if it is another than the model's own.
        """
        images = images or self._images
        if images not in self._encoders:
            self._encoders[images] = TrainingEncoder(self._loaded, self._spec, images, self._options.loader_threads)
        return self._encoders[images].encode(samples)

    def train(
        self,
        data: TrainingSet,
        out: Path,
        recipe_sha256: str,
        listener: Listener,
        stop: threading.Event,
        *,
        seed: int,
        keep: Mapping[int, str] = MappingProxyType({}),
    ) -> None:
        """Take every step that is missing in a folder; raise Interrupted if asked to stop before the end."""
        with self._ready() as trainer:
            trainer.restart(seed)
            loop = StepLoop(
                self._spec, trainer, data, out, recipe_sha256, self._options, self._ranks.is_first, listener, keep
            )
            with as_one_of(self._ranks, self._loaded.device):
                loop.run(stop)

    def losses(self, samples: Sequence[TrainingSample]) -> FloatArray:
        """Return the sum of each sample's losses over its learnt tokens, by the adapter as it was trained last."""
        with self._ready() as trainer:
            return trainer.sample_losses(samples)

    def answers(self, samples: Sequence[TrainingSample], max_new_tokens: int) -> list[str | None]:
        """Return what that model writes after each sample's prompt; None where it did not come to an end."""
        with self._ready() as trainer:
            return trainer.answers(samples, self._loaded.tokenizer, max_new_tokens)

    def update_seconds(self, batch: Sequence[TrainingSample]) -> float:
        """Return how long an update with a batch takes, once the device is warm; whatever was trained is lost."""
        with self._ready() as trainer:
            for _ in range(2):
                began = time.perf_counter()
                trainer.take_step(batch, 0.0)
            return time.perf_counter() - began

    @contextmanager
    def _ready(self) -> Iterator[AdapterTrainer]:
        """Yield the model with an adapter on it, which gets one when it is first needed."""
        device = self._loaded.device
        with devices.watching(device), devices.same_every_time(device):
            if self._trainer is None:
                self._trainer = AdapterTrainer(self._loaded, self._spec, self._options, self._ranks, self._model_path)
            yield self._trainer


class Warmup(Training):
    """A model loaded to be trained by a recipe, as one rank of it."""

    _spec: WarmupSpec

    def checkpoint_steps(self, data: TrainingSet) -> list[int]:
        """Return the steps after which the adapter is kept."""
        return list(checkpoint_steps(self._spec, len(data.steps)))

    def run(self, data: TrainingSet, out: Path, recipe_sha256: str, listener: Listener, stop: threading.Event) -> None:
        """Take every step that is missing; raise Interrupted if asked to stop before the end."""
        keep = checkpoint_steps(self._spec, len(data.steps))
        self.train(data, out, recipe_sha256, listener, stop, seed=self._spec.seed, keep=keep)
