"""Tiny random models on disk, each of a real family with its real class, and small tokenizers. No downloads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TRIMMING = CHATML.replace("message.content", "message.content | trim")
THINKING = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.role == 'assistant' %}<think>\n\n</think>\n\n{% endif %}"
    "{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
)
DATED = "Today: {{ strftime_now('%d %b %Y') }} {{ date_string }}\n" + CHATML
REWRITING = CHATML.replace("message.content", "message.content | replace('Step', 'Stage')")

_CORPUS = [
    "Tom has 3 apples and buys 4 more. How many apples does he have now?",
    "Step 1: Tom starts with 3 apples.\nStep 2: He buys 4 more, so 3 + 4 = 7.\n\nThe answer is 7.",
    "First we add the numbers, then we divide by two and get the result of the whole question.",
    "user assistant system Answer: 42 is what the model says when it is asked again and again.",
] * 4
_SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]

_SMALL: dict[str, Any] = {
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
_MHA = {**_SMALL, "num_key_value_heads": 4}
_GPT: dict[str, Any] = {"n_embd": 48, "n_layer": 2, "n_head": 4, "n_positions": 512}

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen2": ("Qwen2", {**_SMALL, "tie_word_embeddings": True}),
    "qwen3": ("Qwen3", {**_SMALL, "head_dim": 16}),
    "qwen3_moe": (
        "Qwen3Moe",
        {**_SMALL, "head_dim": 16, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
    ),
    "llama": ("Llama", _SMALL),
    "mistral": ("Mistral", {**_SMALL, "head_dim": 12, "sliding_window": 16}),
    "mixtral": ("Mixtral", {**_SMALL, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "gemma": ("Gemma", {**_SMALL, "head_dim": 16}),
    "gemma2": ("Gemma2", {**_SMALL, "head_dim": 16, "final_logit_softcapping": 5.0, "sliding_window": 16}),
    "gemma3": ("Gemma3Text", {**_SMALL, "head_dim": 16, "final_logit_softcapping": 7.0, "sliding_window": 16}),
    "granite": ("Granite", {**_SMALL, "logits_scaling": 3.0, "embedding_multiplier": 4.0}),
    "cohere": ("Cohere", {**_SMALL, "logit_scale": 0.25}),
    "minicpm3": (
        "MiniCPM3",
        {
            **_MHA,
            "q_lora_rank": 16,
            "kv_lora_rank": 16,
            "qk_nope_head_dim": 8,
            "qk_rope_head_dim": 8,
            "v_head_dim": 12,
            "dim_model_base": 24,
        },
    ),
    "phi3": ("Phi3", _SMALL),
    "phimoe": ("Phimoe", {**_SMALL, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "phi": ("Phi", _MHA),
    "olmo2": ("Olmo2", _SMALL),
    "smollm3": ("SmolLM3", _SMALL),
    "gptj": ("GPTJ", {**_GPT, "rotary_dim": 8}),
    "gpt2": ("GPT2", _GPT),
    "gpt_neox": ("GPTNeoX", _MHA),
    "bloom": ("Bloom", {"hidden_size": 48, "n_layer": 2, "n_head": 4}),
    "opt": (
        "OPT",
        {
            "hidden_size": 48,
            "ffn_dim": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "max_position_embeddings": 512,
            "word_embed_proj_dim": 32,
            "do_layer_norm_before": False,
        },
    ),
}


_LONGROPE: dict[str, Any] = {"rope_type": "longrope", "rope_theta": 10000.0}


def scaled_positions_model(scaling: str, folder: Path, *, limit: int) -> Path:
    """Save a tiny model whose positions are scaled by the longest sample's length, beyond a limit."""
    longer = {"max_position_embeddings": 4 * limit, "original_max_position_embeddings": limit}

    def factors(size: int) -> dict[str, Any]:
        several = {"short_factor": [1.0] * size, "long_factor": [4.0 + i for i in range(size)]}
        return {**_LONGROPE, **several, "original_max_position_embeddings": limit, "factor": 4.0}

    if scaling == "dynamic":
        rope = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}
        return tiny_text_model("llama", folder, rope_parameters=rope, max_position_embeddings=limit)
    if scaling == "longrope":
        return tiny_text_model("phi3", folder, rope_parameters=factors(6), **longer)
    if scaling == "longrope of one kind of layer":
        rope = {"full_attention": factors(8), "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0}}
        kinds = ["sliding_attention", "full_attention"]
        return tiny_text_model("gemma3", folder, rope_parameters=rope, layer_types=kinds, **longer)
    assert scaling == "longrope with its own scale"
    rope = {**factors(6), "short_mscale": 1.0, "long_mscale": 1.3}
    return tiny_text_model("phimoe", folder, rope_parameters=rope, **longer)


def tiny_text_model(
    family: str,
    folder: Path,
    *,
    chat_template: str | None = CHATML,
    metaspace: bool = False,
    seed: int = 0,
    **changes: Any,
) -> Path:
    """Save a tiny random model of a family with its tokenizer; changes go over its configuration."""
    tokenizer = tiny_tokenizer(chat_template=chat_template, metaspace=metaspace)
    name, settings = FAMILIES[family]
    ids = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
    config = getattr(transformers, f"{name}Config")(**{"vocab_size": len(tokenizer), **ids, **settings, **changes})
    model = randomize(AutoModelForCausalLM.from_config(config), seed)
    folder.mkdir(parents=True, exist_ok=True)
    transformers.utils.logging.disable_progress_bar()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def randomize(model: Any, seed: int = 0) -> Any:
    """Give every parameter, biases and norms included, a value large enough to show in the logits."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() > 1:
                parameter.copy_(noise * (1.5 / parameter.shape[-1] ** 0.5))
            else:
                parameter.add_(0.3 * noise)
    return model.float()


def tiny_tokenizer(*, chat_template: str | None = CHATML, metaspace: bool = False) -> PreTrainedTokenizerFast:
    """Return a small fast tokenizer: byte-level BPE, or BPE with spaces as ▁ and byte fallback as in Llama-2."""
    backend = _metaspace_backend() if metaspace else _byte_level_backend()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<s>" if metaspace else "<|endoftext|>",
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = chat_template
    return tokenizer


def _byte_level_backend() -> Tokenizer:
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    # Trimmed offsets, as GPT-2's: a token of spaces has an empty span.
    backend.post_processor = processors.ByteLevel(trim_offsets=True)
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=_SPECIAL,
        show_progress=False,
    )
    backend.train_from_iterator(_CORPUS, trainer)
    return backend


def _metaspace_backend() -> Tokenizer:
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    backend = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    # Spaces become ▁ before training so that merges stay within words, as SentencePiece's do.
    backend.normalizer = normalizers.Replace(" ", "▁")
    backend.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    trainer = trainers.BpeTrainer(
        vocab_size=480, special_tokens=[*_SPECIAL, "<unk>", "<s>", *byte_tokens], show_progress=False
    )
    backend.train_from_iterator(_CORPUS, trainer)
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.pre_tokenizer = None
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in [*_SPECIAL, "<s>"]])
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", backend.token_to_id("<s>"))]
    )
    return backend
