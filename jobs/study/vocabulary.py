"""The study's tokenizer: a token a word, a token a whole number, so that a small model can learn arithmetic."""

from __future__ import annotations

from typing import Any

import transformers
from tokenizers import Regex, Tokenizer, models, pre_tokenizers

from jobs.study.problems import LARGEST
from jobs.study.traces import TRACE_WORDS

PAD, USER, ASSISTANT, END, UNKNOWN = "<pad>", "<user>", "<assistant>", "<end>", "<unknown>"
TEMPLATE = (
    "{% for message in messages %}"
    "{% if message.role == 'user' %}<user> {{ message.content }} {% else %}<assistant> {{ message.content }}<end>"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}<assistant> {% endif %}"
)


def make_tokenizer() -> Any:
    """Return a fast word-level tokenizer with a chat template; a newline is a token, spaces are none."""
    words = [PAD, USER, ASSISTANT, END, UNKNOWN, "\n", *map(str, range(LARGEST + 1)), *TRACE_WORDS]
    backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token=UNKNOWN))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split("\n", "isolated"), pre_tokenizers.Split(Regex(" +"), "removed")]
    )
    library: Any = transformers
    tokenizer = library.PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=PAD,
        eos_token=END,
        unk_token=UNKNOWN,
        additional_special_tokens=[USER, ASSISTANT],
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = TEMPLATE
    return tokenizer
