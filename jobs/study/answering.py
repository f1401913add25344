"""Ask a model held-out problems: greedy generation in batches, and which answers are right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from jobs.study.learner import Encoded, Model, Tokenizer, encode
from jobs.study.settings import EvaluationSettings
from jobs.study.traces import Record


@torch.inference_mode()
def generate(model: Model, prompts: Sequence[tuple[int, ...]], settings: EvaluationSettings) -> list[tuple[int, ...]]:
    """Return the greedy continuation of every prompt, up to and with the end of the turn if it came."""
    end: Any = model.config.eos_token_id
    pad: Any = model.config.pad_token_id
    found: dict[int, tuple[int, ...]] = {}
    # Prompts of a length share a batch as far as possible, so that there is little padding.
    order = sorted(range(len(prompts)), key=lambda i: (len(prompts[i]), i))
    for start in range(0, len(order), settings.batch_size):
        members = order[start : start + settings.batch_size]
        longest = max(len(prompts[i]) for i in members)
        tokens = torch.full((len(members), longest), pad)
        mask = torch.zeros((len(members), longest), dtype=torch.long)
        for row, i in enumerate(members):
            tokens[row, longest - len(prompts[i]) :] = torch.tensor(prompts[i])
            mask[row, longest - len(prompts[i]) :] = 1
        made = model.generate(
            input_ids=tokens,
            attention_mask=mask,
            do_sample=False,
            max_new_tokens=settings.max_new_tokens,
            eos_token_id=end,
            pad_token_id=pad,
            use_cache=True,
        )
        for row, i in enumerate(members):
            found[i] = _until_end(made[row, longest:].tolist(), end)
    return [found[i] for i in range(len(prompts))]


def _until_end(tokens: list[int], end: int) -> tuple[int, ...]:
    return tuple(tokens[: tokens.index(end) + 1] if end in tokens else tokens)


def is_right(tokenizer: Tokenizer, generated: Sequence[int], expected: Encoded) -> bool:
    """Tell whether a generation ended by itself and its last line is the right answer's."""
    newline = tokenizer.convert_tokens_to_ids("\n")
    return _last_line(generated, newline) == _last_line(expected.response, newline)


def _last_line(tokens: Sequence[int], newline: Any) -> tuple[int, ...]:
    """Return what follows the last newline; with the end of the turn, if that came."""
    places = [place for place, token in enumerate(tokens) if token == newline]
    return tuple(tokens[places[-1] + 1 :] if places else tokens)


def ask(
    model: Model,
    tokenizer: Tokenizer,
    problems: Sequence[Record],
    settings: EvaluationSettings,
) -> list[bool]:
    """Return which problems a model answers rightly."""
    model.eval()
    expected = encode(tokenizer, problems)
    answers = generate(model, [each.prompt for each in expected], settings)
    return [is_right(tokenizer, answer, each) for answer, each in zip(answers, expected, strict=True)]
