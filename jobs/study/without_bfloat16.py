"""Run the study on choosing on a processor without bfloat16 instructions, several times faster than as it is.

    python -m jobs.study.without_bfloat16 DATA --out jobs/study/results/choosing

Start the command once for each core: each process takes trainings that no other has claimed. Such processors are four
times slower with bfloat16 than with float32. Here products of bfloat16 matrices and attention are computed in float32
and then rounded, as bfloat16 instructions do, so trainings differ by rounding alone. Models answer questions with
float32 copies of their weights, 32 questions at a time.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from grace_store.model.load.weights import describe_model, load
from grace_store.train import adapter_trainer
from grace_store.train.training import Training
from jobs.study import choosing, training

ANSWERED_AT_ONCE = 32
plain_linear, plain_attention = functional.linear, functional.scaled_dot_product_attention


class Product(torch.autograd.Function):
    """A product with a frozen bfloat16 matrix, computed in float32 and rounded."""

    wide: ClassVar[dict[int, tuple[Tensor, Tensor]]] = {}
    """Matrices and their float32 copies, by identity."""

    @classmethod
    def copy_of(cls, weight: Tensor) -> Tensor:
        if id(weight) not in cls.wide:
            cls.wide[id(weight)] = weight, weight.detach().float()
        return cls.wide[id(weight)][1]

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.weight = weight
        return plain_linear(x.float(), Product.copy_of(weight)).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (gradient,) = gradients
        return (gradient.float() @ Product.copy_of(ctx.weight)).to(gradient.dtype), None


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    if x.dtype is not torch.bfloat16 or weight.requires_grad or bias is not None:
        return plain_linear(x, weight, bias)
    return Product.apply(x, weight)


def attention(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, **more: Any) -> Tensor:
    if query.dtype is not torch.bfloat16:
        return plain_attention(query, key, value, attn_mask, **more)
    mask = attn_mask.float() if attn_mask is not None and attn_mask.is_floating_point() else attn_mask
    return plain_attention(query.float(), key.float(), value.float(), mask, **more).to(query.dtype)


def merged_answers() -> Callable[..., list[str | None]]:
    """Return a function that lets a trained model answer with float32 weights, in which its adapter is merged."""
    loaded: list[Any] = []

    def answers(self: Training, samples: Sequence[Any], max_new_tokens: int) -> list[str | None]:
        if not loaded:
            described = describe_model(self._model_path)
            loaded.append(load(described, "float32", self._spec.attention, "cpu", 1).model)
        model = loaded[0]
        with self._ready() as trainer, torch.no_grad():
            for name, layer in trainer._adapted.base_model.model.named_modules():
                for adapter in getattr(layer, "lora_A", ()):
                    added = layer.lora_B[adapter].weight.float() @ layer.lora_A[adapter].weight.float()
                    merged = layer.get_base_layer().weight.float() + layer.scaling[adapter] * added
                    model.get_submodule(name).weight.copy_(merged)
            tokenizer, device = self._loaded.tokenizer, torch.device("cpu")
            return adapter_trainer._greedy_answers(model, tokenizer, samples, max_new_tokens, device)

    return answers


def main() -> int:
    """Run the study in this process."""
    functional.linear, functional.scaled_dot_product_attention = linear, attention
    adapter_trainer.ANSWERED_AT_ONCE = ANSWERED_AT_ONCE
    Training.answers = merged_answers()
    arguments = [*sys.argv[1:], "--processes", "1"]
    return training.main(arguments, choosing.Settings, choosing.SETTINGS, __doc__, choosing.run)


if __name__ == "__main__":
    sys.exit(main())
