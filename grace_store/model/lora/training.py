"""One step of training a LoRA adapter, alone or as one of several ranks. Knows nothing of files or of the run.

The loss of a step is the mean over all tokens that its samples learn, whichever rank or pass they are in: so the
number of devices and the size of a pass change the order of sums and nothing else. Where tokens have weights it is the
weighted mean.
"""

import inspect
import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from grace_store.base.arrays import FloatArray
from grace_store.base.errors import ModelError, OutOfMemory
from grace_store.model import devices
from grace_store.model.devices import in_words
from grace_store.model.inputs.vision import ImageInputs
from grace_store.model.load.length_probe import find_length_rule
from grace_store.model.load.weights import LoadedModel
from grace_store.model.lora.answering import greedy_answers
from grace_store.model.lora.checkpoints import TrainingState, capture, restore
from grace_store.model.lora.layers import (
    adapter_config,
    attach_fresh_adapter,
    compute_twice,
    say_left_out,
    start,
    trainable,
)
from grace_store.model.lora.ranks import add_up
from grace_store.model.lora.recipe import Ranks, TrainingSpec, WarmupOptions
from grace_store.model.lora.training_data import MicroBatch, TrainingSample, micro_batches, queue_images

_LOSS_TOKENS = 1024


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step was: its loss before it was taken, the gradient's norm before clipping."""

    loss: float
    grad_norm: float
    num_tokens: int
    weight: float
    """What the loss is a mean over: the weights of all tokens, or their number where all count 1."""
    is_stopping: bool
    """Whether any rank was asked to stop."""


class AdapterTrainer:
    """A frozen model, an adapter on it, and AdamW."""

    def __init__(
        self, loaded: LoadedModel, spec: TrainingSpec, options: WarmupOptions, ranks: Ranks, base: str
    ) -> None:
        self._model: Any = loaded.model
        self.device = loaded.device
        self._max_grad_norm = spec.max_grad_norm
        self._batch_tokens = options.batch_tokens
        self._rule = find_length_rule(loaded.model, loaded.longest(spec.max_length))
        self._ranks = ranks
        self._image_pool = ThreadPoolExecutor(options.loader_threads, thread_name_prefix="images")
        self._chooses_logits = "logits_to_keep" in inspect.signature(self._model.forward).parameters
        self.left_out = say_left_out(loaded.model)
        """What gets no adapter, in a sentence, or None."""
        self._adapted = attach_fresh_adapter(loaded.model, spec.rank, spec.alpha, spec.seed, base)
        self._parameters = trainable(self._adapted)
        self._settings: dict[str, Any] = {"betas": (spec.beta1, spec.beta2), "eps": spec.epsilon}
        self._settings |= {"lr": spec.learning_rate, "weight_decay": spec.weight_decay, "foreach": False}
        self._optimizer = self._new_optimizer()
        if options.gradient_checkpointing:
            compute_twice(loaded.model)

    def _new_optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self._parameters.values(), **self._settings)

    def restart(self, seed: int) -> None:
        """Begin another training of the same model: an adapter as this seed draws it, and no moments."""
        start(self._adapted, seed)
        self._optimizer = self._new_optimizer()

    @property
    def num_parameters(self) -> int:
        return sum(parameter.numel() for parameter in self._parameters.values())

    @property
    def adapter_config(self) -> dict[str, Any]:
        return adapter_config(self._adapted)

    def capture(self, step: int) -> TrainingState:
        """Return the state after a step."""
        return capture(step, self._parameters, self._optimizer)

    def restore(self, progress: TrainingState) -> None:
        """Go back to a captured state."""
        restore(progress, self._parameters, self._optimizer)

    def take_step(self, batch: Sequence[TrainingSample], rate: float, *, stop: bool = False) -> StepResult:
        """Take one step with a batch that all ranks are given whole; each runs its share."""
        total_weight = sum(sample.total_weight for sample in batch) or 1.0
        told = torch.tensor([0.0, float(stop)], device=self.device)
        self._optimizer.zero_grad(set_to_none=True)
        for micro, images in self._passes(batch):
            try:
                loss = self._loss_sum(micro, images) / total_weight
                loss.backward()  # type: ignore[no-untyped-call]
            except Exception as error:
                if devices.is_lost(error):
                    raise
                if not devices.is_out_of_memory(error):
                    raise ModelError(f"The model fails on a pass of training: {in_words(error)}.") from error
                size = " x ".join(map(str, micro.inputs["input_ids"].shape))
                raise OutOfMemory(
                    f"A pass of {size} tokens does not fit on {self.device}. Lower --batch-tokens and run again: the "
                    "steps saved so far are kept."
                ) from error
            told[0] += loss.detach()
        self._add_gradients(told)
        loss_value, stopping = told.tolist()
        if not math.isfinite(loss_value):
            raise _not_finite("loss")
        norm = float(nn.utils.clip_grad_norm_(list(self._parameters.values()), self._max_grad_norm))
        if not math.isfinite(norm):
            raise _not_finite("gradient")
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.step()
        num_tokens = sum(len(sample.learnt) for sample in batch)
        return StepResult(loss_value, norm, num_tokens, total_weight, stopping > 0)

    def heldout_loss(self, samples: Sequence[TrainingSample]) -> float:
        """Return the mean loss over the samples' learnt tokens."""
        total = torch.zeros((), device=self.device)
        with torch.no_grad():
            for micro, images in self._passes(samples):
                total += self._loss_sum(micro, images)
        add_up(total)
        return float(total) / sum(len(sample.learnt) for sample in samples)

    def sample_losses(self, samples: Sequence[TrainingSample]) -> FloatArray:
        """Return the sum of each sample's losses over its learnt tokens, by one process alone."""
        found = np.zeros(len(samples))
        with torch.no_grad():
            for micro, images in self._passes(samples):
                chosen, target = self._predictions(micro, images)
                blocks = zip(torch.split(chosen, _LOSS_TOKENS), torch.split(target, _LOSS_TOKENS), strict=True)
                losses = torch.cat([_cross_entropy(*block, reduction="none") for block in blocks])
                sums = np.bincount(micro.row.numpy(), losses.double().cpu().numpy(), len(micro.members))
                found[list(micro.members)] = sums
        return found

    def answers(self, samples: Sequence[TrainingSample], tokenizer: Any, max_new_tokens: int) -> list[str | None]:
        """Return what the model writes after each sample's prompt; None where it did not come to an end."""
        try:
            return greedy_answers(self._model, tokenizer, samples, max_new_tokens, self.device)
        except Exception as error:
            if isinstance(error, ModelError) or devices.is_lost(error) or devices.is_out_of_memory(error):
                raise
            raise ModelError(f"The model fails to answer: {in_words(error)}. Leave --generate out.") from error

    def _passes(self, samples: Sequence[TrainingSample]) -> Iterator[tuple[MicroBatch, ImageInputs]]:
        """Yield this rank's share of samples pass by pass, with the next pass's images being opened meanwhile."""
        mine = samples[self._ranks.rank :: self._ranks.world_size]
        batches = micro_batches(mine, self._batch_tokens, self._rule)
        images = queue_images(mine, self._image_pool)
        for batch, upcoming in zip(batches, [*batches[1:], None], strict=True):
            taken = images.take(batch.members)
            images.announce(upcoming.members if upcoming else ())
            yield batch, taken

    def _loss_sum(self, batch: MicroBatch, images: ImageInputs) -> Tensor:
        chosen, target = self._predictions(batch, images)
        columns = [chosen, target] if batch.weight is None else [chosen, target, batch.weight.to(self.device)]
        loss = _cross_entropy if batch.weight is None else _weighted_cross_entropy
        # Block by block, twice: float32 copies of all logits at once would take more memory than the model.
        blocks = zip(*(torch.split(column, _LOSS_TOKENS) for column in columns), strict=True)
        return torch.stack([checkpoint(loss, *block, use_reentrant=False) for block in blocks]).sum()

    def _predictions(self, batch: MicroBatch, images: ImageInputs) -> tuple[Tensor, Tensor]:
        """Return the logits that each learnt token of a pass was predicted by, and the tokens."""
        kept = batch.kept.to(self.device)
        options = {"logits_to_keep": kept} if self._chooses_logits else {}
        inputs = {name: tensor.to(self.device) for name, tensor in {**batch.inputs, **images}.items()}
        logits = self._model(**inputs, use_cache=False, **options).logits
        if logits.shape[1] != len(kept):  # a class that has no such option, or ignores it
            logits = logits.index_select(1, kept)
        return logits[batch.row.to(self.device), batch.place.to(self.device)], batch.target.to(self.device)

    def _add_gradients(self, told: Tensor) -> None:
        """Make every rank's gradients, and what it has to tell, the sum of all ranks'."""
        if self._ranks.world_size == 1:
            return
        parameters = list(self._parameters.values())
        parts = [torch.zeros_like(each) if each.grad is None else each.grad for each in parameters]
        flat = torch.cat([part.reshape(-1) for part in (*parts, told)])
        add_up(flat)
        *pieces, total = torch.split(flat, [each.numel() for each in (*parts, told)])
        for parameter, piece in zip(parameters, pieces, strict=True):
            parameter.grad = piece.view_as(parameter)
        told.copy_(total)


def _not_finite(what: str) -> ModelError:
    return ModelError(f"The {what} is not finite. Lower --learning-rate, or choose --dtype bfloat16 or float32.")


def _cross_entropy(logits: Tensor, target: Tensor, reduction: str = "sum") -> Tensor:
    return nn.functional.cross_entropy(logits.float(), target, reduction=reduction)


def _weighted_cross_entropy(logits: Tensor, target: Tensor, weight: Tensor) -> Tensor:
    return (_cross_entropy(logits, target, "none") * weight).sum()
