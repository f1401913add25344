"""Vision-language families with ways of their own: words that mean images only to the model, processors of videos."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import transformers
from transformers import PreTrainedTokenizerFast

from tests.tiny_vision_models import CLIP, MROPE, ONEVISION_TEMPLATE, QWEN_TEMPLATE, TEXT, Family

_QWEN_MARK = "<|vision_start|><|image_pad|><|vision_end|>"
_GLM_WORDS = [
    "<|begin_of_image|>",
    "<|end_of_image|>",
    "<|begin_of_video|>",
    "<|end_of_video|>",
    "<|image|>",
    "<|video|>",
]
_OVIS_WORDS = ["<image>", "<IMG_START>", "<IMG_GRID>", "<IMG_COL>", "<IMG_ROW>", "<IMG_END>", "<IMG_ATOM>"]


def _glm_config(tokenizer: PreTrainedTokenizerFast) -> Any:
    names = ("image_start", "image_end", "video_start", "video_end", "image", "video")
    ids = {
        f"{name}_token_id": tokenizer.convert_tokens_to_ids(word) for name, word in zip(names, _GLM_WORDS, strict=True)
    }
    return transformers.Glm4vConfig(
        text_config={**TEXT, "vocab_size": len(tokenizer), "rope_parameters": MROPE},
        vision_config={
            "depth": 2, "hidden_size": 32, "num_heads": 2, "image_size": 32, "patch_size": 4, "spatial_merge_size": 2,
            "temporal_patch_size": 2, "out_hidden_size": 48, "intermediate_size": 48,
        },
        **ids,
    )  # fmt: skip


def _save_glm(_tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    settings = {
        "image_processor_type": "Glm4vImageProcessor",
        "processor_class": "Glm4vProcessor",
        "patch_size": 4,
        "merge_size": 2,
        "temporal_patch_size": 2,
        "size": {"shortest_edge": 256, "longest_edge": 4096},
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))


def _ovis_config(tokenizer: PreTrainedTokenizerFast) -> Any:
    ids = [tokenizer.convert_tokens_to_ids(word) for word in _OVIS_WORDS]
    return transformers.Ovis2Config(
        vision_config={**CLIP, "vocab_size": 64, "hidden_stride": 2, "num_visual_indicator_tokens": 5},
        text_config=transformers.Qwen2Config(**{**TEXT, "vocab_size": len(tokenizer)}),
        image_token_id=ids[-1],
        visual_indicator_token_ids=ids[1:-1],
        vocab_size=len(tokenizer),
        hidden_size=48,
        tie_word_embeddings=False,
    )


def _save_ovis(_tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    settings = {
        "image_processor_type": "Ovis2ImageProcessor",
        "processor_class": "Ovis2Processor",
        "size": {"height": 32, "width": 32},
        "crop_to_patches": True,
        "min_patches": 1,
        "max_patches": 4,
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    (folder / "processor_config.json").write_text(
        json.dumps({"processor_class": "Ovis2Processor", "image_seq_length": 4})
    )


def _smol_config(tokenizer: PreTrainedTokenizerFast) -> Any:
    return transformers.SmolVLMConfig(
        vision_config={**CLIP},
        text_config=transformers.LlamaConfig(**{**TEXT, "vocab_size": len(tokenizer)}),
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        scale_factor=2,
        pad_token_id=0,
    )


def _save_smol(_tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    settings = {
        "image_processor_type": "SmolVLMImageProcessor",
        "processor_class": "SmolVLMProcessor",
        "size": {"longest_edge": 64},
        "max_image_size": {"longest_edge": 32},
        "do_image_splitting": True,
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    (folder / "processor_config.json").write_text(
        json.dumps({"processor_class": "SmolVLMProcessor", "image_seq_len": 4})
    )


ODD_FAMILIES: dict[str, Family] = {
    "glm4v": Family(
        _GLM_WORDS,
        QWEN_TEMPLATE.replace(_QWEN_MARK, "<|begin_of_image|><|image|><|end_of_image|>"),
        _glm_config,
        _save_glm,
    ),
    "ovis2": Family(_OVIS_WORDS, ONEVISION_TEMPLATE, _ovis_config, _save_ovis),
    "smolvlm": Family(
        ["<image>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>"],
        QWEN_TEMPLATE.replace(_QWEN_MARK, "<image>"),
        _smol_config,
        _save_smol,
    ),
}
