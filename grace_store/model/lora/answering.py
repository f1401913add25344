"""What a model answers to the prompts of samples: greedy generation in batches. Knows nothing of right and wrong."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig

from grace_store.base.errors import ModelError
from grace_store.model.lora.training_data import TrainingSample

BATCH_SAMPLES = 8
"""Prompts that are answered together; one alone where there are images."""


def greedy_answers(
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
    several = [text[start : start + BATCH_SAMPLES] for start in range(0, len(text), BATCH_SAMPLES)]
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
