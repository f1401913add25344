"""What trainers were asked: tiny models, pictures of every kind, and conversations. See jobs/trainers/record.py.

python -m tests.trainer_cases DIR      # writes models, pictures and cases.json for the recording
"""

from __future__ import annotations

import json
import sys
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from grace_store.choose.exports.axolotl import axolotl_messages
from grace_store.choose.exports.conversations import conversation
from grace_store.choose.exports.export_kind import Cut, cut_by_spaces, weighted_parts
from grace_store.choose.exports.ms_swift import swift_messages
from grace_store.data.sample import Sample, Turn
from grace_store.model.inputs.encode_samples import TokenCuts
from grace_store.model.load.weights import describe_model
from tests.tiny_models import tiny_text_model
from tests.tiny_vision_models import QWEN_TEMPLATE, VISION_FAMILIES, Family, _write, picture, tiny_vision_model

THINKING_TEMPLATE = (  # Qwen3's, without its tools
    "{% set ns = namespace(last=0) %}{% for message in messages %}{% if message.role == 'user' %}"
    "{% set ns.last = loop.index0 %}{% endif %}{% endfor %}{% for message in messages %}"
    "{% set content = message.content %}{% set thought = '' %}"
    "{% if message.role == 'assistant' and '</think>' in content %}"
    "{% set thought = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}"
    "{% set content = content.split('</think>')[-1].lstrip('\n') %}{% endif %}"
    "{{ '<|im_start|>' + message.role + '\n' }}"
    "{% if message.role == 'assistant' and loop.index0 > ns.last and (loop.last or thought) %}"
    "{{ '<think>\n' + thought.strip('\n') + '\n</think>\n\n' + content.lstrip('\n') }}"
    "{% else %}{{ content }}{% endif %}{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_DEFAULT_SYSTEM = (
    "{% if messages[0].role != 'system' %}<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n{% endif %}"
)
CLIP_MEAN, CLIP_STD = [0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]


def _save_qwen(kind: str, **settings: Any) -> Any:
    """Return what saves the image processor that the real model has."""
    shared = {"image_processor_type": "Qwen2VLImageProcessorFast", "processor_class": kind, "merge_size": 2}
    made = {**shared, "temporal_patch_size": 2, **settings}
    return lambda _, folder: _write(folder / "preprocessor_config.json", made)


def _family(name: str, kind: str, template: str, patch_size: int, **settings: Any) -> Family:
    plain = VISION_FAMILIES[name]

    def config(tokenizer: Any) -> Any:
        made = plain.config(tokenizer)
        made.vision_config.patch_size = patch_size
        return made

    return Family(plain.tokens, template, config, _save_qwen(kind, patch_size=patch_size, **settings))


MODELS: dict[str, Family | str] = {
    "qwen3_vl": _family(
        "qwen3_vl",
        "Qwen3VLProcessor",
        QWEN_TEMPLATE,
        16,
        size={"shortest_edge": 65536, "longest_edge": 16777216},
        image_mean=[0.5] * 3,
        image_std=[0.5] * 3,
    ),
    "qwen2_5_vl": _family(
        "qwen2_5_vl",
        "Qwen2_5_VLProcessor",
        _DEFAULT_SYSTEM + QWEN_TEMPLATE,
        14,
        size={"shortest_edge": 3136, "longest_edge": 12845056},
        image_mean=CLIP_MEAN,
        image_std=CLIP_STD,
    ),
    "llava": VISION_FAMILIES["llava"],
    "qwen3": THINKING_TEMPLATE,
}
"""Vision-language families with the limits that the real models have, and a text model that thinks."""

RESPONSE = "Step 1: Tom starts with 3 apples.\nStep 2: 3 + 4 = 7.\nAnswer: 7"
THOUGHT = f"<think>\nTom starts with 3 apples.\n</think>\n\n{RESPONSE}"
ASKED = {"role": "user", "content": "How many apples does he have now?"}
AGAIN = {"role": "user", "content": "And what is 3 + 4?"}


def _said(response: str) -> dict[str, str]:
    return {"role": "assistant", "content": response}


CONVERSATIONS: dict[str, list[dict[str, str]]] = {
    "plain": [ASKED, _said(RESPONSE)],
    "system": [{"role": "system", "content": "Be brief."}, ASKED, _said(RESPONSE)],
    "earlier turn": [ASKED, _said("It is 7."), AGAIN, _said(RESPONSE)],
    "space before": [ASKED, _said(" " + RESPONSE)],
    "lines around": [ASKED, _said(f"\n\n{RESPONSE}\n")],
    "thought": [ASKED, _said(THOUGHT)],
    "earlier thought": [ASKED, _said(THOUGHT), AGAIN, _said(THOUGHT)],
}


WEIGHTED: dict[str, tuple[list[str], list[float]]] = {
    "lines": (["Step 1: Tom starts with 3 apples.\n", "Step 2: 3 + 4 = 7.\n", "Answer: 7"], [0.4, 1.7, 1.0]),
    "zero": (["Step 1: Tom starts with 3 apples.\n", "Step 2: 3 + 4 = 7.\n", "Answer: 7"], [0.0, 2.25, 1.0]),
    "blank lines": (["Tom starts with 3 apples.\n\n", "3 + 4 = 7.\n\n\n", "Answer: 7"], [0.5, 1.5, 1.0]),
    "sentences": (["Tom starts with 3 apples. ", "Then 3 + 4 = 7.  ", "Answer: 7"], [1.25, 0.0, 1.0]),
    "indented": (["1. Tom starts:\n", "   3 apples.\n", "  Answer: 7"], [0.25, 1.75, 1.0]),
    "thought": (["<think>\nTom starts with 3 apples.\n", "3 + 4 = 7.\n</think>\n\n", "Answer: 7"], [0.5, 1.5, 1.0]),
}
"""Responses in segments, with their weights."""


def weighted_sample(name: str) -> Sample:
    """Return a case of WEIGHTED, after an earlier turn."""
    segments, _ = WEIGHTED[name]
    turns = (Turn("user", (ASKED["content"],)), Turn("assistant", ("It is 7.",)), Turn("user", (AGAIN["content"],)))
    return Sample(name, turns, "".join(segments), tuple(accumulate(map(len, segments), initial=0)))


def weighted_rows(cut: Cut) -> dict[str, dict[str, Any]]:
    """Return what ms-swift and axolotl are given of each case: whole, with weights, and with masks."""
    rows = {}
    for name, (_, weights) in WEIGHTED.items():
        sample = weighted_sample(name)
        parts = weighted_parts(sample, np.array(weights), cut)
        whole = conversation(sample, str)["messages"]
        rows[name] = {
            "whole": whole,
            "ms-swift": swift_messages(whole, parts),
            "axolotl": axolotl_messages(whole, parts),
        }
    return rows


def pictures() -> dict[str, Image.Image]:
    """Return a picture of every kind; only what Pillow writes without loss."""
    sizes = {
        "28x28": (28, 28), "10x600": (10, 600), "30x200": (30, 200), "100x60": (100, 60), "255x255": (255, 255),
        "300x300": (300, 300), "800x900": (800, 900), "2100x1500": (2100, 1500),
    }  # fmt: skip
    made = {name: picture(*size, seed=i) for i, (name, size) in enumerate(sizes.items())}
    fading = Image.linear_gradient("L")
    for name, size in {"small": (300, 260), "large": (1000, 800)}.items():
        plain = picture(*size, seed=len(name))
        seen_through = plain.copy()
        seen_through.putalpha(fading.resize(size))
        made[f"alpha {name}"] = seen_through
        made[f"palette {name}"] = plain.quantize(64)
        made[f"grey {name}"] = plain.convert("L")
    made["grey alpha"] = made["alpha small"].convert("LA")
    made["palette alpha"] = made["palette small"].copy()
    made["palette alpha"].info["transparency"] = bytes(range(0, 256, 4))
    made["turned"] = picture(300, 130)
    made["turned"].getexif()[0x0112] = 6
    return made


def save_picture(image: Image.Image, path: Path) -> Path:
    image.save(path, "PNG", exif=image.getexif(), compress_level=1)
    return path


def make_model(name: str, folder: Path) -> Path:
    made = MODELS[name]
    if isinstance(made, str):
        return tiny_text_model(name, folder, chat_template=made)
    return tiny_vision_model(made, folder)


def main(folder: Path) -> None:
    """Write models, pictures and all that is asked of them."""
    images = {}
    (folder / "images").mkdir(parents=True, exist_ok=True)
    for name, image in pictures().items():
        images[name] = str(save_picture(image, (folder / "images" / f"{name.replace(' ', '_')}.png").absolute()))
    for name in MODELS:
        make_model(name, folder / name)
    tokenizer = describe_model(str(folder / "qwen3")).tokenizer
    weighted = {"by spaces": weighted_rows(cut_by_spaces), "by tokens": weighted_rows(TokenCuts(tokenizer))}
    cases = {"images": images, "conversations": CONVERSATIONS, "weighted": weighted}
    (folder / "cases.json").write_text(json.dumps(cases, indent=1))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
