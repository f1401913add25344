"""What the benchmark extracts from: traces of any shape, random models of any size, and the real one if installed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from random import Random

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast

from grace_store.base.errors import MissingExtra
from grace_store.example import demo_model

SEED = 0
NUM_WORDS = 1500
TOKENIZER_SIZE = 4_000
"""Tokens that texts are made of, however many more a model has: its vocabulary changes no lengths."""
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True, slots=True)
class Traces:
    """Records of made-up words: how many, and how long."""

    num_samples: int = 24
    num_steps: int = 9
    words_per_segment: int = 20
    prompt_words: int = 60
    traces: int = 1
    """Of each prompt."""
    image: str | None = None
    """Of every prompt."""

    def write(self, path: Path) -> Path:
        """Write them as JSON lines; lengths vary by a third around what is said."""
        rng, words = Random(SEED), made_up_words()

        def text(length: int) -> str:
            return " ".join(rng.choices(words, k=max(2, round(length * rng.uniform(2 / 3, 4 / 3)))))

        with path.open("w") as lines:
            for number in range(self.num_samples):
                steps = [text(self.words_per_segment) for _ in range(self.num_steps)]
                if number % self.traces == 0:
                    asked = {"prompt": text(self.prompt_words)} | (
                        {} if self.image is None else {"images": [self.image]}
                    )
                record = {"id": str(number), **asked, "steps": steps}
                lines.write(json.dumps({**record, "answer": text(self.words_per_segment)}) + "\n")
        return path


@dataclass(frozen=True, slots=True)
class RandomModel:
    """A Llama of random weights."""

    hidden_size: int = 768
    num_layers: int = 12
    vocab_size: int = 32_000

    def write(self, folder: Path) -> Path:
        """Write the model and a tokenizer that makes about one token of a word."""
        torch.manual_seed(SEED)
        config = LlamaConfig(
            vocab_size=self.vocab_size,
            hidden_size=self.hidden_size,
            num_hidden_layers=self.num_layers,
            intermediate_size=self.hidden_size * 8 // 3 // 64 * 64,
            num_attention_heads=self.hidden_size // 64,
            num_key_value_heads=max(1, self.hidden_size // 256),
            max_position_embeddings=16_384,
            tie_word_embeddings=True,
            bos_token_id=0,
            eos_token_id=0,
            pad_token_id=0,
        )
        transformers.utils.logging.disable_progress_bar()
        AutoModelForCausalLM.from_config(config).save_pretrained(folder)
        _tokenizer(self.vocab_size).save_pretrained(folder)
        return folder

    def describe(self) -> str:
        return f"random Llama, hidden size {self.hidden_size}, {self.num_layers} layers, {self.vocab_size} tokens"


def made_up_words() -> list[str]:
    rng = Random(SEED)
    return ["".join(rng.choices(_LETTERS, k=rng.randint(2, 9))) for _ in range(NUM_WORDS)]


def real_model() -> Path | None:
    """Return SmolLM2-135M-Instruct, or None if its package is not installed."""
    try:
        return demo_model()
    except MissingExtra:
        return None


def _tokenizer(vocab_size: int) -> PreTrainedTokenizerFast:
    """Return a byte-level BPE of at most so many tokens, trained on the words."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=min(TOKENIZER_SIZE, vocab_size),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=["<|endoftext|>"],
        show_progress=False,
    )
    backend.train_from_iterator([" " + " ".join(made_up_words())] * 2, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<|endoftext|>", eos_token="<|endoftext|>", pad_token="<|endoftext|>"
    )
