"""The study's small model: made, taught, saved and read again. Full fine-tuning, float32, one budget for all."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

from jobs.study.settings import ModelSettings, TrainSettings
from jobs.study.traces import Record
from jobs.study.vocabulary import make_tokenizer

Model = Any
Tokenizer = Any
"""Of transformers, whose types are half there."""

IGNORED = -100
"""The label of a token that is not learnt."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """A trace as tokens: prompt, then response with the end of the turn, which are learnt."""

    prompt: tuple[int, ...]
    response: tuple[int, ...]


def new_model(settings: ModelSettings, tokenizer: Tokenizer, seed: int) -> Model:
    torch.manual_seed(seed)
    library: Any = transformers
    return library.LlamaForCausalLM(
        library.LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=settings.hidden_size,
            intermediate_size=settings.intermediate_size,
            num_hidden_layers=settings.num_layers,
            num_attention_heads=settings.num_heads,
            num_key_value_heads=settings.num_heads,
            max_position_embeddings=settings.max_length,
            tie_word_embeddings=False,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )


def save_model(model: Model, tokenizer: Tokenizer, folder: Path) -> None:
    """Write a model as an ordinary Hugging Face folder."""
    _without_bars()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def read_model(folder: Path) -> tuple[Model, Tokenizer]:
    library = _without_bars()
    model = library.LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model, library.PreTrainedTokenizerFast.from_pretrained(folder)


def _without_bars() -> Any:
    """Return transformers, told to draw no progress bars for a model that loads in no time."""
    library: Any = transformers
    library.utils.logging.disable_progress_bar()
    return library


def response_text(record: Record) -> str:
    """Return the response as the explicit format has it."""
    return "\n".join([*record["steps"], record["answer"]])


def encode(tokenizer: Tokenizer, records: Sequence[Record]) -> list[Encoded]:
    """Return traces as grace-store's chat rendering has them, plus the end of the turn."""
    made = []
    for record in records:
        asked = [{"role": "user", "content": record["prompt"]}]
        told = [*asked, {"role": "assistant", "content": response_text(record)}]
        prompt = tokenizer.apply_chat_template(asked, tokenize=False, add_generation_prompt=True)
        whole = tokenizer.apply_chat_template(told, tokenize=False)
        ids = tokenizer(whole, add_special_tokens=False)["input_ids"]
        start = len(tokenizer(prompt, add_special_tokens=False)["input_ids"])
        made.append(Encoded(tuple(ids[:start]), tuple(ids[start:])))
    return made


def batches(num_traces: int, settings: TrainSettings, seed: int) -> Iterator[list[int]]:
    """Yield exactly the budget's batches: every trace once before any comes again, in an order of the seed's."""
    generator = torch.Generator().manual_seed(seed)
    waiting: list[int] = []
    for _ in range(settings.num_updates):
        while len(waiting) < settings.batch_size:
            waiting += torch.randperm(num_traces, generator=generator).tolist()
        yield waiting[: settings.batch_size]
        del waiting[: settings.batch_size]


def collate(traces: Sequence[Encoded], pad: int) -> tuple[Tensor, Tensor]:
    """Return tokens and labels, padded on the right. No mask: a causal model does not see what follows."""
    longest = max(len(trace.prompt) + len(trace.response) for trace in traces)
    tokens = torch.full((len(traces), longest), pad)
    labels = torch.full((len(traces), longest), IGNORED)
    for row, trace in enumerate(traces):
        start, stop = len(trace.prompt), len(trace.prompt) + len(trace.response)
        tokens[row, :stop] = torch.tensor([*trace.prompt, *trace.response])
        labels[row, start:stop] = torch.tensor(trace.response)
    return tokens, labels


def learning_rate(settings: TrainSettings, update: int) -> float:
    """Return the rate of an update, counted from 0: a linear rise, then a cosine to 0."""
    rising = max(1, round(settings.warmup_share * settings.num_updates))
    if update < rising:
        return settings.learning_rate * (update + 1) / rising
    done = (update - rising) / max(1, settings.num_updates - rising)
    return settings.learning_rate * 0.5 * (1 + math.cos(math.pi * done))


@dataclass(frozen=True, slots=True)
class Training:
    """What a training was."""

    num_updates: int
    num_traces_seen: int
    num_tokens_learnt: int
    last_loss: float
    """Mean over the last tenth of the updates."""


def train(model: Model, traces: Sequence[Encoded], settings: TrainSettings, seed: int) -> Training:
    """Train all of a model's parameters for the budget, on the response's tokens."""
    model.train()
    pad: Any = model.config.pad_token_id
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95), weight_decay=settings.weight_decay, fused=True)
    losses: list[float] = []
    num_seen = num_tokens = 0
    for update, members in enumerate(batches(len(traces), settings, seed)):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(settings, update)
        tokens, labels = collate([traces[i] for i in members], pad)
        loss = response_loss(model, tokens, labels)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(float(loss.detach()))
        num_seen += len(members)
        num_tokens += int((labels != IGNORED).sum())
    model.eval()
    last = losses[-max(1, len(losses) // 10) :]
    return Training(len(losses), num_seen, num_tokens, sum(last) / len(last))


def response_loss(model: Model, tokens: Tensor, labels: Tensor) -> Tensor:
    """Return the mean loss over the response's tokens of a batch."""
    logits = model(input_ids=tokens, use_cache=False).logits
    return torch.nn.functional.cross_entropy(
        logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=IGNORED
    )


@torch.inference_mode()
def heldout_loss(model: Model, traces: Sequence[Encoded], batch_size: int) -> float:
    """Return the mean loss over the response's tokens of all traces."""
    total = num_tokens = 0.0
    pad: Any = model.config.pad_token_id
    for start in range(0, len(traces), batch_size):
        tokens, labels = collate(traces[start : start + batch_size], pad)
        count = int((labels != IGNORED).sum())
        total += count * float(response_loss(model, tokens, labels))
        num_tokens += count
    return total / num_tokens


def make_base(
    settings: ModelSettings, schedule: TrainSettings, lessons: Sequence[Record], seed: int, folder: Path
) -> Training:
    """Teach a new model the easy course and save it."""
    tokenizer = make_tokenizer()
    model = new_model(settings, tokenizer, seed)
    training = train(model, encode(tokenizer, lessons), schedule, seed)
    save_model(model, tokenizer, folder)
    return training
