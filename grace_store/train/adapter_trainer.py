"""A model with a LoRA adapter: a step of its training, its losses and its answers. Knows no files and no run.

The loss of a step is the mean over all tokens that its samples learn, whichever rank or pass they are in: so the
number of devices and the size of a pass change the order of sums and nothing else. Where tokens have weights it is the
weighted mean.
"""

import functools
import inspect
import math
import re
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from peft import LoraConfig, TaskType, get_peft_model
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import GenerationConfig
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.pytorch_utils import Conv1D

from grace_store.base.arrays import FloatArray
from grace_store.base.errors import ModelError, OutOfMemory
from grace_store.base.training_settings import Ranks, TrainingSpec, WarmupOptions
from grace_store.model import devices
from grace_store.model.backbone import find_length_rule
from grace_store.model.devices import in_words
from grace_store.model.inputs.vision import ImageInputs
from grace_store.model.load.adapters import ADAPTER
from grace_store.model.load.weights import LoadedModel
from grace_store.train.checkpoints import TrainingState, capture, restore
from grace_store.train.ranks import add_up
from grace_store.train.training_data import MicroBatch, TrainingSample, micro_batches, queue_images

_LOSS_TOKENS = 1024
ANSWERED_AT_ONCE = 8
"""Prompts that are answered together; one alone where there are images."""


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
            return _greedy_answers(self._model, tokenizer, samples, max_new_tokens, self.device)
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


# ---------------------------------------------------------------- what the model answers


def _greedy_answers(
    model: Any, tokenizer: Any, samples: Sequence[TrainingSample], max_new_tokens: int, device: torch.device
) -> list[str | None]:
    """Return the text that a model writes after each prompt; None where it did not come to an end."""
    if not (ends := _ends(tokenizer, samples)):
        raise ModelError("Nothing that ends a turn follows a response, so answers have no end. Leave --generate out.")
    settings = GenerationConfig(  # type: ignore[no-untyped-call]
        do_sample=False, max_new_tokens=max_new_tokens, eos_token_id=sorted(ends), pad_token_id=min(ends)
    )
    found: dict[int, str | None] = {}
    for members in _batches(samples):
        inputs = {name: tensor.to(device) for name, tensor in _inputs([samples[i] for i in members]).items()}
        with torch.no_grad():
            made = model.generate(**inputs, generation_config=settings)
        for row, i in enumerate(members):
            found[i] = _text(tokenizer, made[row, inputs["input_ids"].shape[1] :].tolist(), ends)
    return [found[i] for i in range(len(samples))]


def _ends(tokenizer: Any, samples: Sequence[TrainingSample]) -> set[int]:
    """Return the tokens that end a turn: the tokenizer's own, and what is learnt as the last one, if it is special."""
    learnt = {int(sample.ids[sample.learnt[-1]]) for sample in samples}
    return {token for token in {*learnt, tokenizer.eos_token_id} if token in tokenizer.all_special_ids}


def _batches(samples: Sequence[TrainingSample]) -> list[list[int]]:
    """Return the places of samples that are answered together, prompts of similar length beside each other."""
    order = sorted(range(len(samples)), key=lambda i: (int(samples[i].learnt[0]), i))
    text = [i for i in order if samples[i].images is None]
    several = [text[start : start + ANSWERED_AT_ONCE] for start in range(0, len(text), ANSWERED_AT_ONCE)]
    return several + [[i] for i in order if samples[i].images is not None]


def _inputs(samples: Sequence[TrainingSample]) -> dict[str, Tensor]:
    """Return the model's arguments for the prompts of samples, padded on the left, where no answer follows."""
    prompts = [int(sample.learnt[0]) for sample in samples]
    longest = max(prompts)
    names = ["input_ids", "attention_mask", *(n for n in samples[0].token_inputs if n != "attention_mask")]
    inputs = {name: torch.zeros((len(samples), longest), dtype=torch.long) for name in names}
    for row, (sample, length) in enumerate(zip(samples, prompts, strict=True)):
        own = {**sample.token_inputs, "input_ids": sample.ids}
        for name, tensor in inputs.items():
            values = 1 if name == "attention_mask" else torch.from_numpy(own[name][:length].astype("int64"))
            tensor[row, longest - length :] = values
    images = {} if samples[0].images is None else samples[0].images.inputs()
    return {**inputs, **images}


def _text(tokenizer: Any, tokens: list[int], ends: set[int]) -> str | None:
    stop = next((place for place, token in enumerate(tokens) if token in ends), None)
    return None if stop is None else str(tokenizer.decode(tokens[:stop], skip_special_tokens=True))


# ---------------------------------------------------------------- lora layers
# LoRA on the linear layers of a model's language part: where it goes, how it starts, and what it is called.
#
# The vision tower, the aligner, the embeddings and the output head stay as they are, so the head's W_out is the
# base model's. Nothing is ever dropped out: the model stays in evaluation mode, and activations that are computed
# twice are the same twice.


_FEW = 0.01
_KINDS_SHOWN = 3


def language_part(model: Any) -> nn.Module:
    """Return the decoder of a model, without vision tower, aligner and head."""
    decoder: nn.Module = model.get_decoder() if hasattr(model, "get_decoder") else model.base_model
    return decoder


def target_names(model: Any) -> list[str]:
    """Return the full names of the decoder's linear layers, GPT-2's Conv1D included."""
    decoder = language_part(model)
    output = model.get_output_embeddings()
    inside = {id(module) for module in decoder.modules() if isinstance(module, nn.Linear | Conv1D)}
    if not (names := [name for name, module in model.named_modules() if id(module) in inside and module is not output]):
        raise ModelError(f"{type(model).__name__} has no linear layers in its language part for LoRA to go on.")
    return names


def say_left_out(model: Any) -> str | None:
    """Say which matrices of the language part get no adapter, such as a mixture's experts; None if few do."""
    targets = {id(model.get_submodule(name).weight) for name in target_names(model)}
    ends = [each for each in model.modules() if isinstance(each, nn.Embedding) or each is model.get_output_embeddings()]
    inside = {id(parameter) for parameter in language_part(model).parameters()}
    inside -= {id(parameter) for end in ends for parameter in end.parameters()}
    sizes = {name: each.numel() for name, each in model.named_parameters() if id(each) in inside and each.dim() > 1}
    left_out = [name for name, parameter in model.named_parameters() if name in sizes and id(parameter) not in targets]
    share = sum(sizes[name] for name in left_out) / max(1, sum(sizes.values()))
    if share < _FEW:
        return None
    kinds = list(dict.fromkeys(re.sub(r"(?<=\.)[0-9]+(?=\.)", "*", name) for name in left_out))
    return (
        f"{share:.0%} of the language part's weights get no adapter, as LoRA goes on linear layers only: "
        f"{', '.join(kinds[:_KINDS_SHOWN])}{', ...' if len(kinds) > _KINDS_SHOWN else ''}."
    )


def attach_fresh_adapter(model: nn.Module, rank: int, alpha: float, seed: int, base: str) -> Any:
    """Put a fresh float32 adapter on a frozen model, in place, and return peft's view of both."""
    names = target_names(model)
    modules = dict(model.named_modules())
    config = LoraConfig(
        r=rank,
        lora_alpha=cast(int, int(alpha) if alpha == int(alpha) else alpha),
        lora_dropout=0.0,
        bias="none",
        target_modules=names,
        fan_in_fan_out=any(isinstance(modules[name], Conv1D) for name in names),
        task_type=TaskType.CAUSAL_LM,
        base_model_name_or_path=base,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        adapted = get_peft_model(model, config, adapter_name=ADAPTER)
    adapted.eval()
    start(adapted, seed)
    return adapted


def trainable(adapted: Any) -> dict[str, nn.Parameter]:
    """Return the adapter's parameters under the names they have in adapter_model.safetensors, sorted."""
    learnt = {name: parameter for name, parameter in adapted.named_parameters() if parameter.requires_grad}
    return dict(sorted((name.replace(f".{ADAPTER}.", "."), parameter) for name, parameter in learnt.items()))


def start(adapted: Any, seed: int) -> None:
    """Draw A as peft would but from our seed, on the CPU and by name so that all ranks start alike; B is zero."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in trainable(adapted).items():
            if ".lora_A." in name:
                drawn = torch.rand(parameter.shape, generator=generator, dtype=torch.float32)
                parameter.copy_((2.0 * drawn - 1.0) / parameter.shape[1] ** 0.5)
            else:
                parameter.zero_()


def adapter_config(adapted: Any) -> dict[str, Any]:
    """Return adapter_config.json as peft would write it, with sets in one order."""
    settings = adapted.peft_config[ADAPTER].to_dict()
    settings["inference_mode"] = True
    return {name: sorted(value) if isinstance(value, set) else value for name, value in settings.items()}


def compute_twice(model: nn.Module) -> int:
    """Have each layer compute its activations again for gradients; transformers' switch would switch dropout on."""
    layers = [module for module in language_part(model).modules() if isinstance(module, GradientCheckpointingLayer)]
    for layer in layers:
        layer.forward = functools.partial(checkpoint, layer.forward, use_reentrant=False, preserve_rng_state=False)
    return len(layers)
