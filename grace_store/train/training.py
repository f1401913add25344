"""A training: resolve the settings, load the model and take every step.

Why not transformers' Trainer: here the recipe alone decides each step (samples, token mean, learning rate). So a
training that was killed, or that runs on another number of devices, takes the same steps. An adapter's gradients have
only a few megabytes, so ranks need no DDP: each rank runs its share of a step's samples, and one sum over all ranks
completes the gradients. The result is a short loop without random state, which can be saved bit for bit.
"""

import math
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

from grace_store.base.arrays import FloatArray
from grace_store.base.errors import Interrupted, ModelError, SettingError
from grace_store.base.events import Listener, Note, StepTaken
from grace_store.base.settings import ExtractSpec, Rendering
from grace_store.base.states import SetAside
from grace_store.base.text import counted
from grace_store.base.training_settings import Ranks, TrainingSpec, WarmupOptions, WarmupSpec
from grace_store.base.watch import Watch
from grace_store.data.sample import Sample
from grace_store.model import devices
from grace_store.model.inputs.tokens import Renderer, SampleTokenizer
from grace_store.model.inputs.vision import image_mark
from grace_store.model.load.adapter_folder import CheckpointState
from grace_store.model.load.resolve_spec import resolve_spec
from grace_store.model.load.weights import ModelDescription, describe_model, load
from grace_store.train.adapter_trainer import AdapterTrainer
from grace_store.train.checkpoints import read_last, write_checkpoint, write_last
from grace_store.train.loss_log import LOSSES, LossLog
from grace_store.train.ranks import as_one_of, lowest_and_highest
from grace_store.train.training_data import TrainingEncoder, TrainingSample, weigh

__all__ = [
    "StepLoop", "Training", "TrainingSample", "TrainingSet", "checkpoint_steps", "learning_rate", "mean_learning_rate",
    "resolve_training", "weigh",
]  # fmt: skip

SpecT = TypeVar("SpecT", bound=TrainingSpec)
ALONE = Ranks()


def resolve_training(model: str, request: SpecT, options: WarmupOptions) -> SpecT:
    """Return the complete spec of a training or warm-up. Choose all settings that were not given.

    Reads the weights only for digests.
    """
    given = request.given()
    shared = {name: value for name, value in given.items() if name in ExtractSpec.can_give()}
    reading = resolve_spec(model, ExtractSpec(**shared), options)
    chosen = {name: getattr(reading, name) for name in ("model", "rendering", "dtype", "attention")}
    chosen["train_eos"] = _resolve_eos(given.get("train_eos"), reading.rendering, describe_model(model))
    return type(request)(**{**given, **chosen}).whole()


def _resolve_eos(wish: bool | None, rendering: Rendering, described: ModelDescription) -> bool:
    """Return whether the end of the turn is learnt: by default if there is a token for it."""
    if wish is False:
        return False
    mark = None if described.processor is None else image_mark(described.processor)
    renderer = Renderer(described.tokenizer, rendering, system=None, text_only=True, include_eos=True, image_mark=mark)
    limits = {"max_length": 2, "vocab_size": 1}
    tokenizer = SampleTokenizer(described.tokenizer, add_special_tokens=False, include_eos=True, **limits)
    has_end = tokenizer.has_marker(renderer.suffix)
    if wish and not has_end:
        raise SettingError("--train-eos has no effect: no end-of-turn token follows a response. Leave --train-eos out.")
    return has_end


@dataclass(frozen=True, slots=True)
class TrainingSet:
    """The samples of a training, its steps, and the held-out samples."""

    samples: Sequence[TrainingSample]
    steps: Sequence[Sequence[int]]
    """The samples of each step, by position."""
    heldout: Sequence[TrainingSample]


class Training:
    """A loaded model for any number of trainings with one spec, as one rank of several."""

    def __init__(
        self, model: str, spec: TrainingSpec, options: WarmupOptions, ranks: Ranks = ALONE, images: str | None = None
    ) -> None:
        self._model_path = model
        self._spec = spec
        self._options = options
        self._ranks = ranks
        devices.prepare_same_every_time()
        device = devices.of_rank(options.device, self._ranks.local_rank)
        self._loaded = load(describe_model(model), spec.dtype, spec.attention, device, options.threads)
        self._images = images
        self._encoders: dict[str | None, TrainingEncoder] = {}
        self._trainer: AdapterTrainer | None = None

    def encode(self, samples: Sequence[Sample], images: str | None = None) -> list[TrainingSample | SetAside]:
        """Return each sample's tokens, or the reason why it cannot be trained on.

        images is the folder of relative image paths, by default the folder given to this training.
        """
        if (images := images or self._images) not in self._encoders:
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
        """Take every step that is missing in the folder out; raise Interrupted after a request to stop."""
        with self._ready() as trainer:
            trainer.restart(seed)
            loop = StepLoop(
                self._spec, trainer, data, out, recipe_sha256, self._options, self._ranks.is_first, listener, keep
            )
            with as_one_of(self._ranks, self._loaded.device):
                loop.run(stop)

    def losses(self, samples: Sequence[TrainingSample]) -> FloatArray:
        """Return the sum of each sample's losses over its learnt tokens, with the adapter of the last training."""
        with self._ready() as trainer:
            return trainer.sample_losses(samples)

    def answers(self, samples: Sequence[TrainingSample], max_new_tokens: int) -> list[str | None]:
        """Return the trained model's answer to each sample's prompt; None for an answer that did not end."""
        with self._ready() as trainer:
            return trainer.answers(samples, self._loaded.tokenizer, max_new_tokens)

    def update_seconds(self, batch: Sequence[TrainingSample]) -> float:
        """Return the seconds of an update with a batch on a warm device. This destroys the trained adapter."""
        with self._ready() as trainer:
            for _ in range(2):
                began = time.perf_counter()
                trainer.take_step(batch, 0.0)
            return time.perf_counter() - began

    @contextmanager
    def _ready(self) -> Iterator[AdapterTrainer]:
        """Yield the model with an adapter, which is attached at the first call."""
        device = self._loaded.device
        with devices.watching(device), devices.same_every_time(device):
            if self._trainer is None:
                self._trainer = AdapterTrainer(self._loaded, self._spec, self._options, self._ranks, self._model_path)
            yield self._trainer


@dataclass
class StepLoop:
    """The loop over the steps of a recipe. Every rank runs it; only the first rank writes files and messages."""

    spec: TrainingSpec
    trainer: AdapterTrainer
    data: TrainingSet
    out: Path
    recipe_sha256: str
    options: WarmupOptions
    is_first: bool
    listener: Listener
    keep: Mapping[int, str] = field(default_factory=dict)
    """The steps with a checkpoint, and the fraction of the training at each."""

    def __post_init__(self) -> None:
        self._num_steps = len(self.data.steps)
        self._log: LossLog | None = None
        self._saved_at = time.monotonic()

    def run(self, stop: threading.Event) -> None:
        """Take every missing step; raise Interrupted after a request to stop."""
        with Watch(self.options.patience, self.listener) as watch:
            with watch.over("the loss before the first step"):
                done = self._begin()
            self._take_steps(done, stop, watch)

    def _take_steps(self, done: int, stop: threading.Event, watch: Watch) -> None:
        for step in range(done + 1, self._num_steps + 1):
            batch = [self.data.samples[i] for i in self.data.steps[step - 1]]
            rate = learning_rate(self.spec, step, self._num_steps)
            try:
                with watch.over(f"step {step}"):
                    result = self.trainer.take_step(batch, rate, stop=stop.is_set())
            except ModelError as error:
                error.add_note(f"at step {step} of {self._num_steps}")
                raise
            if self._log is not None:
                measured = {"grad_norm": result.grad_norm, "num_tokens": result.num_tokens}
                if result.weight != result.num_tokens:
                    measured["weight"] = result.weight
                self._log.add(step=step, loss=result.loss, learning_rate=rate, **measured)
                self.listener(StepTaken(step, self._num_steps, result.loss, rate, result.num_tokens))
            if step in self.keep:
                self._write_checkpoint(step, rate)
            stopping = result.is_stopping and step < self._num_steps
            if step in self.keep or stopping or time.monotonic() - self._saved_at >= self.options.save_seconds:
                if self.is_first:
                    write_last(self.out, self.trainer.capture(step), self.recipe_sha256)
                self._saved_at = time.monotonic()
            if stopping:
                at = f"step {step} of {self._num_steps}"
                raise Interrupted(f"Stopped after {at}. Run the same command again to continue from this step.")

    def _begin(self) -> int:
        """Restore the saved adapter and log; return the number of steps taken before."""
        saved = read_last(self.out, self.recipe_sha256)
        done = saved.step if saved else 0
        # This also makes all ranks wait: no rank writes before every rank has read.
        least, most = lowest_and_highest(done, self.trainer.device)
        if least != most:
            raise SettingError(
                f"The ranks do not see the same --out: in {self.out}, one rank finds step {most} saved and another "
                f"{f'step {least}' if least else 'nothing'}. Give a folder that all machines share."
            )
        if saved:
            self.trainer.restore(saved)
            self._tell(f"Continuing after step {done} of {self._num_steps}.")
        else:
            samples, steps = counted(len(self.data.samples), "sample"), counted(self._num_steps, "step")
            self._tell(f"Training {self.trainer.num_parameters:,} parameters on {samples} in {steps}.")
            if self.trainer.left_out:
                self._tell(self.trainer.left_out)
        if self.is_first:
            self._log = LossLog(self.out / LOSSES, kept_steps=done if saved else None)
        if not saved:
            self._measure(0)
        return done

    def _tell(self, text: str) -> None:
        if self.is_first:
            self.listener(Note(text))

    def _measure(self, step: int) -> float | None:
        """Return the held-out loss, which all ranks measure together; None without held-out samples."""
        if not self.data.heldout:
            return None
        loss = self.trainer.heldout_loss(self.data.heldout)
        if self._log is not None:
            self._log.add(step=step, heldout_loss=loss)
            self.listener(Note(f"Held-out loss after step {step}: {loss:.4f}."))
        return loss

    def _write_checkpoint(self, step: int, rate: float) -> None:
        heldout = self._measure(step)
        if self._log is None:
            return
        first = 1 + max((kept for kept in self.keep if kept < step), default=0)
        state = CheckpointState(
            step=step,
            num_steps=self._num_steps,
            fraction=self.keep[step],
            learning_rate=rate,
            mean_learning_rate=mean_learning_rate(self.spec, first, step, self._num_steps),
            loss=self._log.mean_loss(first, step),
            heldout_loss=heldout,
            base=self.spec.model,
            recipe_sha256=self.recipe_sha256,
        )
        folder = write_checkpoint(self.out, self.trainer.capture(step), self.trainer.adapter_config, self.spec, state)
        self.listener(Note(f"Wrote {folder}."))


def learning_rate(spec: TrainingSpec, step: int, num_steps: int) -> float:
    """Return the learning rate of a step, counted from 1. It rises from 0, then falls to 0, as in transformers."""
    taken = step - 1
    rising = math.ceil(num_steps * spec.warmup_ratio)
    if taken < rising:
        return spec.learning_rate * taken / rising
    if spec.schedule == "constant":
        return spec.learning_rate
    progress = (taken - rising) / max(1, num_steps - rising)
    factor = 0.5 * (1.0 + math.cos(math.pi * progress)) if spec.schedule == "cosine" else 1.0 - progress
    return spec.learning_rate * max(0.0, factor)


def mean_learning_rate(spec: TrainingSpec, first: int, last: int, num_steps: int) -> float:
    """Return the mean learning rate of the steps first to last, both included."""
    return sum(learning_rate(spec, step, num_steps) for step in range(first, last + 1)) / (last - first + 1)


def checkpoint_steps(spec: WarmupSpec, num_steps: int) -> dict[int, str]:
    """Return {step: fraction} for every checkpoint, rounded up; raise if two fractions give the same step."""
    steps: dict[int, str] = {}
    for fraction in spec.checkpoints:
        if (step := math.ceil(Fraction(fraction) * num_steps)) in steps:
            raise SettingError(
                f"Checkpoints {steps[step]} and {fraction} both fall on step {step} of {num_steps}. Give fewer values "
                "of --checkpoints, a smaller --batch-size or a larger --ratio."
            )
        steps[step] = fraction
    return steps
