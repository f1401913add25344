"""The steps of a training in their order: take them, log them, keep checkpoints, save so that a kill costs little.

Why not transformers' Trainer: a step here is fixed by the recipe alone (which samples, their token mean, the
learning rate), so that a run that was killed, or spread over another number of devices, takes the same steps. An
adapter's gradients being a few megabytes, ranks need no DDP: each runs its share of a step's samples and one sum
makes their gradients whole. What is left is a short loop without random state, which can be saved to the bit.
"""

import math
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

from grace_store.base.errors import Interrupted, ModelError, SettingError
from grace_store.base.events import CheckpointWritten, HeldOutMeasured, Listener, Note, StepTaken
from grace_store.base.text import counted
from grace_store.base.watch import Watch
from grace_store.model.lora.checkpoints import read_last, write_checkpoint, write_last
from grace_store.model.lora.loss_log import LossLog
from grace_store.model.lora.ranks import lowest_and_highest
from grace_store.model.lora.recipe import LOSSES, CheckpointState, TrainingSpec, WarmupOptions, WarmupSpec
from grace_store.model.lora.training import AdapterTrainer, StepResult
from grace_store.model.lora.training_data import TrainingSample


@dataclass(frozen=True, slots=True)
class TrainingSet:
    """What is trained on, in which steps, and what is held out."""

    samples: Sequence[TrainingSample]
    steps: Sequence[Sequence[int]]
    """The samples of each step, by position."""
    heldout: Sequence[TrainingSample]


@dataclass
class StepLoop:
    """Runs the steps of a recipe. Every rank runs it; the first alone writes and speaks."""

    spec: TrainingSpec
    trainer: AdapterTrainer
    data: TrainingSet
    out: Path
    recipe_sha256: str
    options: WarmupOptions
    is_first: bool
    listener: Listener
    keep: Mapping[int, str] = field(default_factory=dict)
    """The steps after which a checkpoint is kept, with the fraction of the training that each is."""

    def __post_init__(self) -> None:
        self._num_steps = len(self.data.steps)
        self._log: LossLog | None = None
        self._saved_at = time.monotonic()

    def run(self, stop: threading.Event) -> None:
        """Take every step that is missing; raise Interrupted if asked to stop before the end."""
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
            self._record(step, rate, result)
            if step in self.keep:
                self._write_checkpoint(step, rate)
            stopping = result.is_stopping and step < self._num_steps
            if step in self.keep or stopping or time.monotonic() - self._saved_at >= self.options.save_seconds:
                self._save(step)
            if stopping:
                at = f"step {step} of {self._num_steps}"
                raise Interrupted(f"Stopped after {at}; run the same command again to go on from there.")

    def _begin(self) -> int:
        """Return how many steps were taken before, with the adapter and the log as they were then."""
        saved = read_last(self.out, self.recipe_sha256)
        done = saved.step if saved else 0
        least, most = lowest_and_highest(done, self.trainer.device)  # also: nobody writes before everybody has read
        if least != most:
            raise SettingError(
                f"The ranks do not see the same --out: in {self.out}, one finds step {most} saved and another "
                f"{f'step {least}' if least else 'nothing'}. Give a folder that all machines share."
            )
        if saved:
            self.trainer.restore(saved)
            self._tell(f"Going on after step {done} of {self._num_steps}.")
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

    def _record(self, step: int, rate: float, result: StepResult) -> None:
        if self._log is None:
            return
        measured = {"grad_norm": result.grad_norm, "num_tokens": result.num_tokens}
        if result.weight != result.num_tokens:
            measured["weight"] = result.weight
        self._log.add(step=step, loss=result.loss, learning_rate=rate, **measured)
        self.listener(StepTaken(step, self._num_steps, result.loss, rate, result.num_tokens))

    def _measure(self, step: int) -> float | None:
        """Return the held-out loss, measured by all ranks together, or None if nothing is held out."""
        if not self.data.heldout:
            return None
        loss = self.trainer.heldout_loss(self.data.heldout)
        if self._log is not None:
            self._log.add(step=step, heldout_loss=loss)
            self.listener(HeldOutMeasured(step, loss))
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
        self.listener(CheckpointWritten(step, str(folder)))

    def _save(self, step: int) -> None:
        if self.is_first:
            write_last(self.out, self.trainer.capture(step), self.recipe_sha256)
        self._saved_at = time.monotonic()


def learning_rate(spec: TrainingSpec, step: int, num_steps: int) -> float:
    """Return the rate of step 1..num_steps: rising from 0 and then falling to 0, as transformers' schedules do."""
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
    """Return the mean rate of steps first..last, both included."""
    return sum(learning_rate(spec, step, num_steps) for step in range(first, last + 1)) / (last - first + 1)


def checkpoint_steps(spec: WarmupSpec, num_steps: int) -> dict[int, str]:
    """Return {step: fraction} for every checkpoint, rounding up; fractions that fall together are refused."""
    steps: dict[int, str] = {}
    for fraction in spec.checkpoints:
        step = math.ceil(Fraction(fraction) * num_steps)
        if step in steps:
            raise SettingError(
                f"Checkpoints {steps[step]} and {fraction} both fall on step {step} of {num_steps}. Give fewer "
                "--checkpoints, a smaller --batch-size or a larger --ratio."
            )
        steps[step] = fraction
    return steps
