"""The steps of a warm-up in their order: take them, log them, keep checkpoints, save so that a kill costs little.

Why not transformers' Trainer: a step here is fixed by the recipe alone (which samples, their token mean, the
learning rate), so that a run that was killed, or spread over another number of devices, takes the same steps. An
adapter's gradients being a few megabytes, ranks need no DDP: each runs its share of a step's samples and one sum
makes their gradients whole. What is left is a short loop without random state, which can be saved to the bit.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from grace_store.base.errors import Interrupted, ModelError, SettingError
from grace_store.base.events import CheckpointWritten, HeldOutMeasured, Listener, Note, StepTaken
from grace_store.model.lora.checkpoints import read_last, write_checkpoint, write_last
from grace_store.model.lora.loss_log import LossLog
from grace_store.model.lora.ranks import lowest_and_highest
from grace_store.model.lora.recipe import LOSSES, CheckpointState, Ranks, WarmupSpec
from grace_store.model.lora.schedule import checkpoint_steps, learning_rate, mean_learning_rate
from grace_store.model.lora.training import AdapterTrainer, StepResult
from grace_store.model.lora.training_data import TrainingSample


@dataclass(frozen=True, slots=True)
class TrainingSet:
    """What is trained on, in which steps, and what is held out."""

    samples: Sequence[TrainingSample]
    steps: Sequence[Sequence[int]]
    """The samples of each step, by position."""
    heldout: Sequence[TrainingSample]


class StepLoop:
    """Runs the steps of a recipe. Every rank runs it; the first alone writes and speaks."""

    def __init__(
        self,
        spec: WarmupSpec,
        trainer: AdapterTrainer,
        data: TrainingSet,
        *,
        out: Path,
        recipe_sha256: str,
        save_seconds: float,
        ranks: Ranks,
        listener: Listener,
    ) -> None:
        self._spec = spec
        self._trainer = trainer
        self._data = data
        self._out = out
        self._recipe_sha256 = recipe_sha256
        self._save_seconds = save_seconds
        self._is_first = ranks.is_first
        self._listener = listener
        self._num_steps = len(data.steps)
        self._keep = checkpoint_steps(spec, self._num_steps)
        self._log: LossLog | None = None
        self._saved_at = time.monotonic()

    def run(self, stop: threading.Event) -> None:
        """Take every step that is missing; raise Interrupted if asked to stop before the end."""
        done = self._begin()
        for step in range(done + 1, self._num_steps + 1):
            batch = [self._data.samples[i] for i in self._data.steps[step - 1]]
            rate = learning_rate(self._spec, step, self._num_steps)
            try:
                result = self._trainer.take_step(batch, rate, stop=stop.is_set())
            except ModelError as error:
                error.add_note(f"at step {step} of {self._num_steps}")
                raise
            self._record(step, rate, result)
            if step in self._keep:
                self._write_checkpoint(step, rate)
            stopping = result.is_stopping and step < self._num_steps
            if step in self._keep or stopping or time.monotonic() - self._saved_at >= self._save_seconds:
                self._save(step)
            if stopping:
                raise Interrupted(
                    f"Stopped after step {step} of {self._num_steps}; run the same command again to go on from there."
                )

    def _begin(self) -> int:
        """Return how many steps were taken before, with the adapter and the log as they were then."""
        saved = read_last(self._out, self._recipe_sha256)
        done = saved.step if saved else 0
        least, most = lowest_and_highest(done)  # also: nobody writes before everybody has read
        if least != most:
            raise SettingError(
                f"The ranks do not see the same --out: in {self._out}, one finds step {most} saved and another "
                f"{f'step {least}' if least else 'nothing'}. Give a folder that all machines share."
            )
        if saved:
            self._trainer.restore(saved)
            self._tell(f"Going on after step {done} of {self._num_steps}.")
        else:
            self._tell(
                f"Training {self._trainer.num_parameters:,} parameters on {len(self._data.samples)} samples "
                f"in {self._num_steps} steps."
            )
            if self._trainer.left_out:
                self._tell(self._trainer.left_out)
        if self._is_first:
            self._log = LossLog(self._out / LOSSES, kept_steps=done if saved else None)
        if not saved:
            self._measure(0)
        return done

    def _tell(self, text: str) -> None:
        if self._is_first:
            self._listener(Note(text))

    def _record(self, step: int, rate: float, result: StepResult) -> None:
        if self._log is None:
            return
        self._log.add(
            step=step,
            loss=result.loss,
            learning_rate=rate,
            grad_norm=result.grad_norm,
            num_tokens=result.num_tokens,
        )
        self._listener(StepTaken(step, self._num_steps, result.loss, rate, result.num_tokens))

    def _measure(self, step: int) -> float | None:
        """Return the held-out loss, measured by all ranks together, or None if nothing is held out."""
        if not self._data.heldout:
            return None
        loss = self._trainer.heldout_loss(self._data.heldout)
        if self._log is not None:
            self._log.add(step=step, heldout_loss=loss)
            self._listener(HeldOutMeasured(step, loss))
        return loss

    def _write_checkpoint(self, step: int, rate: float) -> None:
        heldout = self._measure(step)
        if self._log is None:
            return
        first = 1 + max((kept for kept in self._keep if kept < step), default=0)
        state = CheckpointState(
            step=step,
            num_steps=self._num_steps,
            fraction=self._keep[step],
            learning_rate=rate,
            mean_learning_rate=mean_learning_rate(self._spec, first, step, self._num_steps),
            loss=self._log.mean_loss(first, step),
            heldout_loss=heldout,
            base=self._spec.model,
            recipe_sha256=self._recipe_sha256,
        )
        folder = write_checkpoint(
            self._out, self._trainer.capture(step), self._trainer.adapter_config, self._spec, state
        )
        self._listener(CheckpointWritten(step, str(folder)))

    def _save(self, step: int) -> None:
        if self._is_first:
            write_last(self._out, self._trainer.capture(step), self._recipe_sha256)
        self._saved_at = time.monotonic()
