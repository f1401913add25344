"""A model with a LoRA adapter: training steps, losses and answers. Knows no files and no run.

The loss of a step is the mean over all learnt tokens of its samples, on all ranks and in all passes. So the number of
devices and the size of a pass change only the order of sums. If tokens have weights, the loss is the weighted mean.
"""

import functools
import inspect
import math
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
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
from grace_store.model.inputs.encode_samples import ImageQueue
from grace_store.model.inputs.vision import ImageInputs
from grace_store.model.load.adapter_folder import MOMENTS
from grace_store.model.load.adapters import ADAPTER
from grace_store.model.load.weights import LoadedModel
from grace_store.train.checkpoints import TrainingState
from grace_store.train.ranks import add_up
from grace_store.train.training_data import MicroBatch, TrainingSample, micro_batches

_LOSS_TOKENS = 1024
ANSWERED_AT_ONCE = 8
"""Number of prompts in a batch of answers. A prompt with images is answered alone."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """The result of a step: the loss before the update, the gradient's norm before clipping."""

    loss: float
    grad_norm: float
    num_tokens: int
    weight: float
    """The divisor of the mean loss: the sum of the tokens' weights, or the number of tokens without weights."""
    is_stopping: bool
    """Whether a rank has a request to stop."""


class AdapterTrainer:
    """A frozen model with an adapter and AdamW."""

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
        """A sentence about the weights without adapter, or None."""
        self._adapted = attach_fresh_adapter(loaded.model, spec.rank, spec.alpha, spec.seed, base)
        self._parameters = trainable(self._adapted)
        self._settings: dict[str, Any] = {"betas": (spec.beta1, spec.beta2), "eps": spec.epsilon}
        self._settings |= {"lr": spec.learning_rate, "weight_decay": spec.weight_decay, "foreach": False}
        self._optimizer = self._new_optimizer()
        if options.gradient_checkpointing:
            # Each layer computes its activations again for gradients. transformers' own switch would turn on dropout.
            twice = functools.partial(checkpoint, use_reentrant=False, preserve_rng_state=False)
            for layer in language_part(loaded.model).modules():
                if isinstance(layer, GradientCheckpointingLayer):
                    layer.forward = functools.partial(twice, layer.forward)

    def _new_optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self._parameters.values(), **self._settings)

    def restart(self, seed: int) -> None:
        """Begin another training of the same model: a new adapter for this seed, and no moments."""
        start(self._adapted, seed)
        self._optimizer = self._new_optimizer()

    @property
    def num_parameters(self) -> int:
        return sum(parameter.numel() for parameter in self._parameters.values())

    @property
    def adapter_config(self) -> dict[str, Any]:
        """The content of peft's adapter_config.json, with sets sorted."""
        settings = self._adapted.peft_config[ADAPTER].to_dict()
        settings["inference_mode"] = True
        return {name: sorted(value) if isinstance(value, set) else value for name, value in settings.items()}

    def capture(self, step: int) -> TrainingState:
        """Return the state after a step, on the CPU."""

        def copied(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
            return {name: tensor.detach().cpu().clone() for name, tensor in tensors.items()}

        states = {name: self._optimizer.state[parameter] for name, parameter in self._parameters.items()}
        moments = {moment: copied({name: each[moment] for name, each in states.items()}) for moment in MOMENTS}
        return TrainingState(step, copied(self._parameters), moments)

    def restore(self, saved: TrainingState) -> None:
        """Go back to a captured state, bit for bit."""
        with torch.no_grad():
            for name, parameter in self._parameters.items():
                parameter.copy_(saved.tensors[name])
                moments = {moment: saved.moments[moment][name].to(parameter.device) for moment in MOMENTS}
                self._optimizer.state[parameter] = {"step": torch.tensor(float(saved.step)), **moments}

    def take_step(self, batch: Sequence[TrainingSample], rate: float, *, stop: bool = False) -> StepResult:
        """Take one step. All ranks get the whole batch, and each runs its share."""
        total_weight = sum(sample.total_weight for sample in batch) or 1.0
        loss_and_stop = torch.tensor([0.0, float(stop)], device=self.device)
        self._optimizer.zero_grad(set_to_none=True)
        for micro, images in self._passes(batch):
            try:
                loss = self._loss_sum(micro, images) / total_weight
                loss.backward()  # type: ignore[no-untyped-call]
            except Exception as error:
                if devices.is_lost(error):
                    raise
                if not devices.is_out_of_memory(error):
                    raise ModelError(f"The model fails in a training step: {in_words(error)}.") from error
                size = " x ".join(map(str, micro.inputs["input_ids"].shape))
                raise OutOfMemory(
                    f"A pass of {size} tokens does not fit on {self.device}. Lower --batch-tokens and run the command "
                    "again. The steps saved so far are kept."
                ) from error
            loss_and_stop[0] += loss.detach()
        self._add_gradients(loss_and_stop)
        loss_value, stopping = loss_and_stop.tolist()
        if not math.isfinite(loss_value):
            raise _not_finite("loss")
        norm = float(nn.utils.clip_grad_norm_(list(self._parameters.values()), self._max_grad_norm))
        if not math.isfinite(norm):
            raise _not_finite("gradient")
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.step()
        return StepResult(loss_value, norm, sum(len(sample.learnt) for sample in batch), total_weight, stopping > 0)

    def heldout_loss(self, samples: Sequence[TrainingSample]) -> float:
        """Return the mean loss over the samples' learnt tokens."""
        total = torch.zeros((), device=self.device)
        with torch.no_grad():
            for micro, images in self._passes(samples):
                total += self._loss_sum(micro, images)
        add_up(total)
        return float(total) / sum(len(sample.learnt) for sample in samples)

    def sample_losses(self, samples: Sequence[TrainingSample]) -> FloatArray:
        """Return the sum of each sample's losses over its learnt tokens. Only for one process."""
        found = np.zeros(len(samples))
        with torch.no_grad():
            for micro, images in self._passes(samples):
                chosen, target = self._predictions(micro, images)
                blocks = zip(torch.split(chosen, _LOSS_TOKENS), torch.split(target, _LOSS_TOKENS), strict=True)
                losses = torch.cat([_cross_entropies(*block) for block in blocks])
                sums = np.bincount(micro.row.numpy(), losses.double().cpu().numpy(), len(micro.members))
                found[list(micro.members)] = sums
        return found

    def answers(self, samples: Sequence[TrainingSample], tokenizer: Any, max_new_tokens: int) -> list[str | None]:
        """Return the model's answer to each sample's prompt; None for an answer that did not end."""
        try:
            return _greedy_answers(self._model, tokenizer, samples, max_new_tokens, self.device)
        except Exception as error:
            if isinstance(error, ModelError) or devices.is_lost(error) or devices.is_out_of_memory(error):
                raise
            raise ModelError(
                f"The model fails when it generates an answer: {in_words(error)}. Leave --generate out."
            ) from error

    def _passes(self, samples: Sequence[TrainingSample]) -> Iterator[tuple[MicroBatch, ImageInputs]]:
        """Yield this rank's share of samples pass by pass, while other threads open the images of the next pass."""
        mine = samples[self._ranks.rank :: self._ranks.world_size]
        batches = micro_batches(mine, self._batch_tokens, self._rule)
        own_images = {i: each.images for i, each in enumerate(mine) if each.images is not None}
        images = ImageQueue(own_images, self._image_pool)
        for batch, upcoming in zip(batches, [*batches[1:], None], strict=True):
            taken = images.take(batch.members)
            images.announce(upcoming.members if upcoming else ())
            yield batch, taken

    def _loss_sum(self, batch: MicroBatch, images: ImageInputs) -> Tensor:
        chosen, target = self._predictions(batch, images)
        columns = [chosen, target] if batch.weight is None else [chosen, target, batch.weight.to(self.device)]
        # In blocks, which are computed twice: float32 copies of all logits would take more memory than the model.
        blocks = zip(*(torch.split(column, _LOSS_TOKENS) for column in columns), strict=True)
        return torch.stack([checkpoint(_block_loss, *block, use_reentrant=False) for block in blocks]).sum()

    def _predictions(self, batch: MicroBatch, images: ImageInputs) -> tuple[Tensor, Tensor]:
        """Return the logits that predict each learnt token of a pass, and the tokens."""
        kept = batch.kept.to(self.device)
        options = {"logits_to_keep": kept} if self._chooses_logits else {}
        inputs = {name: tensor.to(self.device) for name, tensor in {**batch.inputs, **images}.items()}
        logits = self._model(**inputs, use_cache=False, **options).logits
        if logits.shape[1] != len(kept):  # the class has no such option, or ignores it
            logits = logits.index_select(1, kept)
        return logits[batch.row.to(self.device), batch.place.to(self.device)], batch.target.to(self.device)

    def _add_gradients(self, loss_and_stop: Tensor) -> None:
        """Replace the gradients, the loss and the request to stop by their sums over all ranks."""
        if self._ranks.world_size == 1:
            return
        parameters = list(self._parameters.values())
        parts = [torch.zeros_like(each) if each.grad is None else each.grad for each in parameters]
        flat = torch.cat([part.reshape(-1) for part in (*parts, loss_and_stop)])
        add_up(flat)
        *pieces, total = torch.split(flat, [each.numel() for each in (*parts, loss_and_stop)])
        for parameter, piece in zip(parameters, pieces, strict=True):
            parameter.grad = piece.view_as(parameter)
        loss_and_stop.copy_(total)


def _not_finite(what: str) -> ModelError:
    return ModelError(f"The {what} is not finite. Lower --learning-rate, or choose --dtype bfloat16 or float32.")


def _cross_entropies(logits: Tensor, target: Tensor, reduction: str = "none") -> Tensor:
    return nn.functional.cross_entropy(logits.float(), target, reduction=reduction)


def _block_loss(logits: Tensor, target: Tensor, weight: Tensor | None = None) -> Tensor:
    if weight is None:
        return _cross_entropies(logits, target, "sum")
    return (_cross_entropies(logits, target) * weight).sum()


def _greedy_answers(
    model: Any, tokenizer: Any, samples: Sequence[TrainingSample], max_new_tokens: int, device: torch.device
) -> list[str | None]:
    """Return the model's answer to each prompt; None for an answer that did not end."""
    last_learnt = {int(sample.ids[sample.learnt[-1]]) for sample in samples}
    ends = {token for token in {*last_learnt, tokenizer.eos_token_id} if token in tokenizer.all_special_ids}
    if not ends:
        raise ModelError(
            "No end-of-turn token follows a response, so generated answers have no end. Leave --generate out."
        )
    settings = GenerationConfig(  # type: ignore[no-untyped-call]
        do_sample=False, max_new_tokens=max_new_tokens, eos_token_id=sorted(ends), pad_token_id=min(ends)
    )
    # Prompts of similar length are answered together.
    order = sorted(range(len(samples)), key=lambda i: (int(samples[i].learnt[0]), i))
    text = [i for i in order if samples[i].images is None]
    batches = [text[start : start + ANSWERED_AT_ONCE] for start in range(0, len(text), ANSWERED_AT_ONCE)]
    batches += [[i] for i in order if samples[i].images is not None]
    found: dict[int, str | None] = {}
    for members in batches:
        inputs = {name: tensor.to(device) for name, tensor in _inputs([samples[i] for i in members]).items()}
        with torch.no_grad():
            made = model.generate(**inputs, generation_config=settings)
        for row, i in enumerate(members):
            tokens = made[row, inputs["input_ids"].shape[1] :].tolist()
            stop = next((place for place, token in enumerate(tokens) if token in ends), None)
            found[i] = None if stop is None else str(tokenizer.decode(tokens[:stop], skip_special_tokens=True))
    return [found[i] for i in range(len(samples))]


def _inputs(samples: Sequence[TrainingSample]) -> dict[str, Tensor]:
    """Return the model's arguments for the prompts of samples, padded on the left."""
    prompts = [int(sample.learnt[0]) for sample in samples]
    longest = max(prompts)
    names = ["input_ids", "attention_mask", *(n for n in samples[0].token_inputs if n != "attention_mask")]
    inputs = {name: torch.zeros((len(samples), longest), dtype=torch.long) for name in names}
    for row, (sample, length) in enumerate(zip(samples, prompts, strict=True)):
        own = {**sample.token_inputs, "input_ids": sample.ids}
        for name, tensor in inputs.items():
            values = 1 if name == "attention_mask" else torch.from_numpy(own[name][:length].astype("int64"))
            tensor[row, longest - length :] = values
    return {**inputs, **({} if samples[0].images is None else samples[0].images.inputs())}


# ---------------------------------------------------------------- LoRA layers
# LoRA is on the linear layers of a model's language part. The vision tower, the aligner, the embeddings and the output
# head get no adapter, so the head's W_out is the base model's. There is no dropout: the model stays in evaluation mode,
# and activations that are computed twice have the same values.


def language_part(model: Any) -> nn.Module:
    """Return the decoder of a model, without vision tower, aligner and head."""
    return cast(nn.Module, model.get_decoder() if hasattr(model, "get_decoder") else model.base_model)


def target_names(model: Any) -> list[str]:
    """Return the full names of the decoder's linear layers, GPT-2's Conv1D included."""
    output = model.get_output_embeddings()
    inside = {id(module) for module in language_part(model).modules() if isinstance(module, nn.Linear | Conv1D)}
    if not (names := [name for name, module in model.named_modules() if id(module) in inside and module is not output]):
        raise ModelError(
            f"{type(model).__name__} has no linear layers for LoRA in its language part. Give another model."
        )
    return names


def say_left_out(model: Any) -> str | None:
    """Describe the matrices of the language part without adapter, such as a mixture's experts; None if they are few."""
    targets = {id(model.get_submodule(name).weight) for name in target_names(model)}
    ends = [each for each in model.modules() if isinstance(each, nn.Embedding) or each is model.get_output_embeddings()]
    inside = {id(parameter) for parameter in language_part(model).parameters()}
    inside -= {id(parameter) for end in ends for parameter in end.parameters()}
    sizes = {name: each.numel() for name, each in model.named_parameters() if id(each) in inside and each.dim() > 1}
    left_out = [name for name, parameter in model.named_parameters() if name in sizes and id(parameter) not in targets]
    if (share := sum(sizes[name] for name in left_out) / max(1, sum(sizes.values()))) < 0.01:
        return None
    kinds = list(dict.fromkeys(re.sub(r"(?<=\.)[0-9]+(?=\.)", "*", name) for name in left_out))
    return (
        f"{share:.0%} of the language part's weights get no adapter, because only linear layers get LoRA: "
        f"{', '.join(kinds[:3])}{', ...' if len(kinds) > 3 else ''}."
    )


def attach_fresh_adapter(model: nn.Module, rank: int, alpha: float, seed: int, base: str) -> Any:
    """Attach a new float32 adapter to a frozen model in place, and return the PeftModel."""
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
    with warnings.catch_warnings(action="ignore"):
        adapted = get_peft_model(model, config, adapter_name=ADAPTER)
    adapted.eval()
    start(adapted, seed)
    return adapted


def trainable(adapted: Any) -> dict[str, nn.Parameter]:
    """Return the adapter's parameters, sorted by their names in adapter_model.safetensors."""
    learnt = {name: parameter for name, parameter in adapted.named_parameters() if parameter.requires_grad}
    return dict(sorted((name.replace(f".{ADAPTER}.", "."), parameter) for name, parameter in learnt.items()))


def start(adapted: Any, seed: int) -> None:
    """Draw A from peft's distribution with this seed, on the CPU and by name, so that all ranks start alike; B is 0."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in trainable(adapted).items():
            if ".lora_A." in name:
                drawn = torch.rand(parameter.shape, generator=generator, dtype=torch.float32)
                parameter.copy_((2.0 * drawn - 1.0) / parameter.shape[1] ** 0.5)
            else:
                parameter.zero_()
