"""Tiny random vision-language models on disk, each of a real family with its real classes, and images. No downloads."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import transformers
from PIL import Image
from transformers import AutoModelForImageTextToText, PreTrainedTokenizerFast

from tests.tiny_models import randomize, tiny_tokenizer

QWEN_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}"
    "{% if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part.text }}{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLAVA_TEMPLATE = (
    "{% for message in messages %}{% if message['role'] != 'system' %}{{ message['role'].upper() + ': '}}{% endif %}"
    "{% for content in message['content'] | selectattr('type', 'equalto', 'image') %}{{ '<image>\n' }}{% endfor %}"
    "{% if message['role'] != 'assistant' %}"
    "{% for content in message['content'] | selectattr('type', 'equalto', 'text') %}{{ content['text'] + ' '}}"
    "{% endfor %}{% else %}"
    "{% for content in message['content'] | selectattr('type', 'equalto', 'text') %}"
    "{% generation %}{{ content['text'] + ' '}}{% endgeneration %}{% endfor %}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"
)
ONEVISION_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + ' ' }}"
    "{% for part in message['content'] | selectattr('type', 'equalto', 'image') %}{{ '<image>' }}{% endfor %}"
    "{% for part in message['content'] | selectattr('type', 'equalto', 'text') %}{{ '\n' + part['text'] }}{% endfor %}"
    "{{ '<|im_end|>' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
GEMMA_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<start_of_turn>"
    "{{ 'model' if message.role == 'assistant' else message.role }}\n"
    "{% if message.content is string %}{{ message.content | trim }}{% else %}{% for part in message.content %}"
    "{% if part.type == 'image' %}<start_of_image>{% else %}{{ part.text | trim }}{% endif %}{% endfor %}{% endif %}"
    "<end_of_turn>\n{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)

TEXT: dict[str, Any] = {
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": 0,
}
MROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 2, 2]}
CLIP: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 32,
    "patch_size": 8,
}
_QWEN_TOKENS = ["<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
_PINPOINTS = [[32, 32], [32, 64], [64, 32], [64, 64]]


@dataclass(frozen=True)
class Family:
    """How a family is made: its tokens, template, configuration and processor."""

    tokens: list[str]
    template: str
    config: Callable[[PreTrainedTokenizerFast], Any]
    save_processor: Callable[[PreTrainedTokenizerFast, Path], None]
    metaspace: bool = False
    names: dict[str, str] | None = None
    """Special tokens that the processor asks the tokenizer for by name."""


def _qwen(name: str, vision: dict[str, Any], text: dict[str, Any]) -> Callable[[PreTrainedTokenizerFast], Any]:
    def make(tokenizer: PreTrainedTokenizerFast) -> Any:
        ids = {
            f"{key}_token_id": tokenizer.convert_tokens_to_ids(token)
            for key, token in zip(("vision_start", "vision_end", "image", "video"), _QWEN_TOKENS, strict=True)
        }
        return getattr(transformers, f"{name}Config")(
            text_config={**TEXT, "vocab_size": len(tokenizer), "rope_parameters": MROPE, **text},
            vision_config={"patch_size": 4, "spatial_merge_size": 2, "temporal_patch_size": 2, **vision},
            **ids,
        )

    return make


def _save_qwen(kind: str) -> Callable[[PreTrainedTokenizerFast, Path], None]:
    # As Qwen's own folders have it: no word of the PIL backend, and a processor class that wants videos too.
    settings = {
        "image_processor_type": "Qwen2VLImageProcessorFast",
        "processor_class": kind,
        "patch_size": 4,
        "merge_size": 2,
        "temporal_patch_size": 2,
        "size": {"shortest_edge": 256, "longest_edge": 4096},
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
    }
    return lambda _, folder: _write(folder / "preprocessor_config.json", settings)


def _write(path: Path, settings: dict[str, Any]) -> None:
    path.write_text(json.dumps(settings))


def _llava_config(tokenizer: PreTrainedTokenizerFast) -> Any:
    return transformers.LlavaConfig(
        vision_config=transformers.CLIPVisionConfig(**CLIP),
        text_config=transformers.LlamaConfig(**{**TEXT, "vocab_size": len(tokenizer)}),
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        vision_feature_select_strategy="default",
        vision_feature_layer=-2,
    )


def _save_llava(tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    images = transformers.CLIPImageProcessorPil(
        size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32}, do_center_crop=True
    )
    transformers.LlavaProcessor(
        images, tokenizer, patch_size=8, vision_feature_select_strategy="default", num_additional_image_tokens=1
    ).save_pretrained(folder)


def _next_config(tokenizer: PreTrainedTokenizerFast) -> Any:
    return transformers.LlavaNextConfig(
        vision_config=transformers.CLIPVisionConfig(**CLIP),
        text_config=transformers.LlamaConfig(**{**TEXT, "vocab_size": len(tokenizer)}),
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        image_grid_pinpoints=_PINPOINTS,
        vision_feature_select_strategy="default",
        vision_feature_layer=-2,
    )


def _save_next(tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    images = transformers.LlavaNextImageProcessorPil(
        size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32}, image_grid_pinpoints=_PINPOINTS
    )
    transformers.LlavaNextProcessor(
        images, tokenizer, patch_size=8, vision_feature_select_strategy="default", num_additional_image_tokens=1
    ).save_pretrained(folder)


def _intern_config(tokenizer: PreTrainedTokenizerFast) -> Any:
    return transformers.InternVLConfig(
        vision_config={**CLIP, "image_size": [32, 32], "patch_size": [8, 8]},
        text_config=transformers.Qwen2Config(**{**TEXT, "vocab_size": len(tokenizer)}),
        image_token_id=tokenizer.convert_tokens_to_ids("<IMG_CONTEXT>"),
        downsample_ratio=0.5,
    )


def _save_intern(_tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    transformers.GotOcr2ImageProcessorPil(
        size={"height": 32, "width": 32}, crop_to_patches=True, min_patches=1, max_patches=4
    ).save_pretrained(folder)
    settings = {"processor_class": "InternVLProcessor", "image_seq_length": 4}
    (folder / "processor_config.json").write_text(json.dumps(settings))


def _onevision_config(tokenizer: PreTrainedTokenizerFast) -> Any:
    return transformers.LlavaOnevisionConfig(
        vision_config=transformers.SiglipVisionConfig(**CLIP, vision_use_head=False),
        text_config=transformers.Qwen2Config(**{**TEXT, "vocab_size": len(tokenizer)}),
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        video_token_index=tokenizer.convert_tokens_to_ids("<video>"),
        image_grid_pinpoints=_PINPOINTS,
        vision_feature_select_strategy="full",
        vision_feature_layer=-1,
    )


def _save_onevision(_tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    transformers.LlavaOnevisionImageProcessorPil(
        size={"height": 32, "width": 32}, image_grid_pinpoints=_PINPOINTS
    ).save_pretrained(folder)
    settings = {
        "processor_class": "LlavaOnevisionProcessor",
        "num_image_tokens": 16,
        "vision_feature_select_strategy": "full",
        "vision_aspect_ratio": "anyres_max_9",
    }
    (folder / "processor_config.json").write_text(json.dumps(settings))


def _gemma_config(tokenizer: PreTrainedTokenizerFast) -> Any:
    ids = {
        name: tokenizer.convert_tokens_to_ids(token)
        for name, token in (
            ("boi_token_index", "<start_of_image>"),
            ("eoi_token_index", "<end_of_image>"),
            ("image_token_index", "<image_soft_token>"),
        )
    }
    return transformers.Gemma3Config(
        text_config={**TEXT, "vocab_size": len(tokenizer), "head_dim": 16, "sliding_window": 24},
        vision_config={**CLIP, "vision_use_head": False},
        mm_tokens_per_image=4,
        **ids,
    )


def _save_gemma(tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    images = transformers.Gemma3ImageProcessorPil(size={"height": 32, "width": 32})
    transformers.Gemma3Processor(images, tokenizer, image_seq_length=4).save_pretrained(folder)


_QWEN3_VISION: dict[str, Any] = {
    "depth": 2,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_heads": 2,
    "out_hidden_size": 48,
    "num_position_embeddings": 64,
    "deepstack_visual_indexes": [0],
}
_QWEN25_VISION: dict[str, Any] = {
    "depth": 2,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_heads": 2,
    "out_hidden_size": 48,
    "window_size": 16,
    "fullatt_block_indexes": [1],
}
_QWEN2_VISION: dict[str, Any] = {"depth": 2, "embed_dim": 32, "hidden_size": 48, "num_heads": 2, "mlp_ratio": 2}

_QWEN3, _QWEN25, _QWEN2 = (_save_qwen(f"{name}Processor") for name in ("Qwen3VL", "Qwen2_5_VL", "Qwen2VL"))
VISION_FAMILIES: dict[str, Family] = {
    "qwen3_vl": Family(_QWEN_TOKENS, QWEN_TEMPLATE, _qwen("Qwen3VL", _QWEN3_VISION, {"head_dim": 12}), _QWEN3),
    "qwen2_5_vl": Family(_QWEN_TOKENS, QWEN_TEMPLATE, _qwen("Qwen2_5_VL", _QWEN25_VISION, {}), _QWEN25),
    "qwen2_vl": Family(_QWEN_TOKENS, QWEN_TEMPLATE, _qwen("Qwen2VL", _QWEN2_VISION, {}), _QWEN2),
    "qwen3_vl_moe": Family(
        _QWEN_TOKENS,
        QWEN_TEMPLATE,
        _qwen(
            "Qwen3VLMoe",
            _QWEN3_VISION,
            {"head_dim": 12, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
        ),
        _QWEN3,
    ),
    "llava": Family(["<image>"], LLAVA_TEMPLATE, _llava_config, _save_llava, metaspace=True),
    "llava_next": Family(["<image>"], LLAVA_TEMPLATE, _next_config, _save_next, metaspace=True),
    "llava_onevision": Family(["<image>", "<video>"], ONEVISION_TEMPLATE, _onevision_config, _save_onevision),
    "internvl": Family(
        ["<IMG_CONTEXT>", "<img>", "</img>"],
        QWEN_TEMPLATE.replace("<|vision_start|><|image_pad|><|vision_end|>", "<IMG_CONTEXT>\n"),
        _intern_config,
        _save_intern,
        names={
            "start_image_token": "<img>",
            "end_image_token": "</img>",
            "context_image_token": "<IMG_CONTEXT>",
            "video_token": "<video>",
        },
    ),
    "gemma3": Family(
        ["<start_of_image>", "<end_of_image>", "<image_soft_token>", "<start_of_turn>", "<end_of_turn>"],
        GEMMA_TEMPLATE,
        _gemma_config,
        _save_gemma,
        names={
            "boi_token": "<start_of_image>",
            "eoi_token": "<end_of_image>",
            "image_token": "<image_soft_token>",
        },
    ),
}


def tiny_vision_model(family: str | Family, folder: Path, *, seed: int = 0, text: dict[str, Any] | None = None) -> Path:
    """Save a tiny random vision-language model with its tokenizer, chat template and image processor.

    text is changed in the configuration of its language part.
    """
    made = VISION_FAMILIES[family] if isinstance(family, str) else family
    tokenizer = vision_tokenizer(made)
    config = made.config(tokenizer)
    for name, value in (text or {}).items():
        setattr(config.text_config, name, value)
    model = randomize(AutoModelForImageTextToText.from_config(config), seed)
    folder.mkdir(parents=True, exist_ok=True)
    transformers.utils.logging.disable_progress_bar()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    made.save_processor(tokenizer, folder)
    (folder / "chat_template.jinja").write_text(made.template)
    return folder


def vision_tokenizer(family: str | Family) -> PreTrainedTokenizerFast:
    made = VISION_FAMILIES[family] if isinstance(family, str) else family
    tokenizer = tiny_tokenizer(chat_template=None, metaspace=made.metaspace)
    tokenizer.add_tokens([transformers.AddedToken(token, special=True) for token in made.tokens], special_tokens=True)
    if made.names:
        tokenizer._set_model_specific_special_tokens(made.names)
        tokenizer.init_kwargs["extra_special_tokens"] = made.names
    return tokenizer


def picture(width: int, height: int, seed: int = 0) -> Image.Image:
    """Return a picture of coloured blocks: neither flat nor noise."""
    blocks = np.random.default_rng(seed).integers(0, 256, (5, 6, 3), dtype=np.uint8)
    return Image.fromarray(blocks).resize((width, height), Image.Resampling.BILINEAR)


def png(image: Image.Image) -> bytes:
    buffer = BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()
