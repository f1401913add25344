"""Write down what a real trainer makes of tests/trainer_cases.py; tests/test_trainers.py holds grace-store against it.

Run by hand, once for each trainer, in an environment of its own that needs nothing of grace-store:

    python -m tests.trainer_cases /tmp/cases                   # with grace-store's own environment
    python -m venv /tmp/ms-swift
    /tmp/ms-swift/bin/pip install torch==2.13.0                # first, for its CPU build
    /tmp/ms-swift/bin/pip install ms-swift qwen_vl_utils
    /tmp/ms-swift/bin/python jobs/trainers/record.py ms-swift /tmp/cases tests/golden/trainers/ms-swift.json

and the same with `llama-factory` (pip install llamafactory) and `trl` (pip install trl). What becomes of step weights
is recorded by `ms-swift-weights` and `axolotl-weights` (pip install axolotl), into tests/golden/weights/.

Trainers need torchvision of the version that fits torch (0.28 for 2.13). If it was built for CUDA and torch was not,
install it with --no-deps and empty its _meta_registrations.py; of LLaMA-Factory's torchaudio, then, delete lib/*.so.
Only resizing is used here.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

Messages = list[dict[str, str]]
Encode = Callable[[Messages, "str | None"], dict[str, Any]]
"""From a conversation, and the path of an image that stands before its first question, to all that a model is given."""

Weigh = Callable[[dict[str, Any]], dict[str, Any]]
"""From a case of tests/trainer_cases.py to what a trainer makes of its tokens and their weights."""

IMAGE_TOKENS = {"qwen3_vl": "<|image_pad|>", "qwen2_5_vl": "<|image_pad|>", "llava": "<image>", "qwen3": None}
PACKAGES = (
    "ms-swift",
    "llamafactory",
    "trl",
    "axolotl",
    "qwen_vl_utils",
    "transformers",
    "torch",
    "torchvision",
    "pillow",
)
NUM_PIXELS = 24
"""Numbers kept of an image's pixel values, spread evenly over them."""


# ---------------------------------------------------------------- the trainers


def ms_swift(folder: Path) -> tuple[Any, Encode]:
    """Return the tokenizer, and the encoding that `swift sft` applies to a row of its dataset."""
    from swift import get_processor, get_template

    kind = folder.name.replace("llava", "llava1_5_hf")
    template = get_template(get_processor(str(folder), model_type=kind), template_type=kind, max_length=100_000)
    template.set_mode("train")
    tokenizer = template.tokenizer
    # The real models' ids are written into ms-swift; these models have smaller vocabularies.
    if hasattr(template, "image_token_id"):
        template.image_token_id = tokenizer.convert_tokens_to_ids("<|image_pad|>")

    def encode(messages: Messages, image: str | None) -> dict[str, Any]:
        return template.encode({"messages": with_mark(messages, image), "images": [image] if image else []})

    return tokenizer, encode


def llama_factory(folder: Path) -> tuple[Any, Encode]:
    """Return the tokenizer, and what `llamafactory-cli train` reads from a file and puts into a batch."""
    from llamafactory.data import SFTDataCollatorWith4DAttentionMask, get_dataset, get_template_and_fix_tokenizer
    from llamafactory.hparams import get_train_args
    from llamafactory.model import load_tokenizer

    work = Path(tempfile.mkdtemp())
    roles = {"role_tag": "role", "content_tag": "content", "user_tag": "user", "assistant_tag": "assistant"}
    columns = {"messages": "messages", "images": "images"}
    shared = {"formatting": "sharegpt", "tags": {**roles, "system_tag": "system"}}
    info = {
        "text": {"file_name": "text.json", **shared, "columns": {"messages": "messages"}},
        "images": {"file_name": "images.json", **shared, "columns": columns},
    }
    (work / "dataset_info.json").write_text(json.dumps(info))
    template_name = {"qwen2_5_vl": "qwen2_vl", "qwen3_vl": "qwen3_vl_nothink"}.get(folder.name, folder.name)

    def encode(messages: Messages, image: str | None) -> dict[str, Any]:
        row = {"messages": with_mark(messages, image), **({"images": [image]} if image else {})}
        name = "images" if image else "text"
        (work / f"{name}.json").write_text(json.dumps([row]))
        options = {
            "model_name_or_path": str(folder), "template": template_name, "stage": "sft", "do_train": True,
            "dataset": name, "dataset_dir": str(work), "output_dir": str(work / "out"), "cutoff_len": 100_000,
            "overwrite_cache": True, "report_to": "none", "use_cpu": True,
        }  # fmt: skip
        model_args, data_args, training_args, _, _ = get_train_args(options)
        module = load_tokenizer(model_args)
        template = get_template_and_fix_tokenizer(module["tokenizer"], data_args)
        dataset = get_dataset(template, model_args, data_args, training_args, stage="sft", **module)["train_dataset"]
        collator = SFTDataCollatorWith4DAttentionMask(template=template, label_pad_token_id=-100, **module)
        return dict(collator([dataset[0]]))

    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder), encode


def trl(folder: Path) -> tuple[Any, Encode]:
    """Return the tokenizer, and what SFTTrainer makes of a file with a prompt and its completion."""
    from datasets import Image, List, load_dataset
    from transformers import AutoTokenizer
    from trl import SFTConfig, SFTTrainer

    work = Path(tempfile.mkdtemp())
    settings = SFTConfig(output_dir=str(work), max_length=None, report_to=[], use_cpu=True, bf16=False)

    def encode(messages: Messages, image: str | None) -> dict[str, Any]:
        file = work / f"{len(list(work.iterdir()))}.jsonl"
        file.write_text(json.dumps(trl_row(messages, image)))
        dataset = load_dataset("json", data_files=str(file), split="train")
        if image:
            dataset = dataset.cast_column("images", List(Image()))
        trainer = SFTTrainer(model=str(folder), args=settings, train_dataset=dataset)
        return dict(trainer.data_collator([trainer.train_dataset[0]]))

    return AutoTokenizer.from_pretrained(folder), encode


def trl_row(messages: Messages, image: str | None) -> dict[str, Any]:
    """Return what `select --as trl` writes of a conversation, but for its id."""
    made, shown = [], 0
    for message in messages:
        parts = [{"type": "text", "text": message["content"]}]
        if image and message["role"] == "user" and not shown:
            parts, shown = [{"type": "image", "text": None}, *parts], 1
        made.append({"role": message["role"], "content": parts if image else message["content"]})
    return {"prompt": made[:-1], "completion": made[-1:], **({"images": [image]} if image else {})}


TRAINERS = {"ms-swift": ms_swift, "llama-factory": llama_factory, "trl": trl}


# ---------------------------------------------------------------- trainers that read step weights


def ms_swift_weights(folder: Path) -> Weigh:
    """Return what `swift sft --is_binary_loss_scale false` makes of a row, and what it makes without the option.

    Two templates: one that puts an empty thought before a response, and one that does not.
    """
    from swift import get_processor, get_template

    def encoding(kind: str, *, is_binary: bool | None) -> Callable[[list[Any]], dict[str, Any]]:
        processor = get_processor(str(folder), model_type="qwen3")
        made = get_template(processor, template_type=kind, max_length=100_000, is_binary_loss_scale=is_binary)
        made.set_mode("train")
        return lambda messages: made.encode({"messages": copied(messages)})

    kinds = ("qwen3", "qwen2_5")
    weighing = {kind: encoding(kind, is_binary=False) for kind in kinds}
    plain = {kind: encoding(kind, is_binary=None) for kind in kinds}

    def weigh(case: dict[str, Any]) -> dict[str, Any]:
        found = {}
        for kind in kinds:
            made, unweighed = weighing[kind](case["ms-swift"]), plain[kind](case["ms-swift"])
            found[kind] = {
                "ids": made["input_ids"],
                "weights": made["loss_scale"],
                "whole": plain[kind](case["whole"])["input_ids"],
                "learnt_without_option": learnt(unweighed["labels"]),
            }
        return {"row": case["ms-swift"], "templates": found}

    return weigh


def axolotl_weights(folder: Path) -> Weigh:
    """Return what axolotl's chat_template strategy, with the settings it has by default, makes of a row."""
    from axolotl.prompt_strategies.chat_template import ChatTemplatePrompter, ChatTemplateStrategy
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    prompter = ChatTemplatePrompter(tokenizer, chat_template=tokenizer.chat_template)
    roles = {"roles_to_train": ["assistant"], "train_on_eos": "turn"}
    strategy = ChatTemplateStrategy(prompter, tokenizer, False, 100_000, **roles)

    def weigh(case: dict[str, Any]) -> dict[str, Any]:
        made, whole = (strategy.tokenize_prompt({"messages": copied(case[name])}) for name in ("axolotl", "whole"))
        found = {"ids": made["input_ids"], "learnt": learnt(made["labels"]), "whole": whole["input_ids"]}
        return {"row": case["axolotl"], "templates": {"its own": found}}

    return weigh


def learnt(labels: list[int]) -> list[int]:
    """Return the places of the tokens that are learnt."""
    return [place for place, label in enumerate(labels) if label != -100]


def copied(messages: list[Any]) -> list[Any]:
    """Return messages of their own: trainers change what they are given."""
    return json.loads(json.dumps(messages))


WEIGHERS = {"ms-swift-weights": ms_swift_weights, "axolotl-weights": axolotl_weights}


# ---------------------------------------------------------------- what is kept of it


def with_mark(messages: Messages, image: str | None) -> Messages:
    """Return the conversation with <image> before its first question."""
    first = next(i for i, message in enumerate(messages) if message["role"] == "user")
    mark = "<image>" if image else ""
    return [
        {**message, "content": mark + message["content"]} if i == first else dict(message)
        for i, message in enumerate(messages)
    ]


def flat(values: Any) -> list[int]:
    """Return a row of numbers out of a list or a tensor of one row."""
    values = values.tolist() if hasattr(values, "tolist") else list(values)
    return values[0] if values and isinstance(values[0], list) else values


def kept(made: dict[str, Any], image_token: int | None) -> dict[str, Any]:
    """Return the tokens other than the image's, those that are learnt, and the image in a few numbers."""
    ids, labels = flat(made["input_ids"]), flat(made["labels"])
    # LLaMA-Factory puts an image behind a text that has none, and hides it from the model.
    seen = flat(made.get("attention_mask", [1] * len(ids)))
    where = [i for i, token in enumerate(ids) if token != image_token and seen[i]]
    found = {
        "ids": [ids[i] for i in where],
        "learnt": learnt([labels[i] for i in where]),
        "num_image_tokens": sum(token == image_token for token, is_seen in zip(ids, seen, strict=True) if is_seen),
    }
    if found["num_image_tokens"]:
        pixels = made["pixel_values"].float()
        line = pixels.flatten()
        places = [(2 * i + 1) * len(line) // (2 * NUM_PIXELS) for i in range(NUM_PIXELS)]
        found["shape"] = list(pixels.shape)
        found["pixels"] = [round(float(line[place]), 4) for place in places]
    return found


def record(make: Callable[[Path], tuple[Any, Encode]], cases: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield what the trainer makes of every conversation and every image, for each model."""
    asked = json.loads((cases / "cases.json").read_text())
    for model, word in IMAGE_TOKENS.items():
        tokenizer, encode = make(cases / model)
        token = tokenizer.convert_tokens_to_ids(word) if word else None
        found = {"conversations": {}, "images": {}}
        questions = [("conversations", name, messages, None) for name, messages in asked["conversations"].items()]
        if word:
            plain = asked["conversations"]["plain"]
            questions += [("images", name, plain, path) for name, path in asked["images"].items()]
        for kind, name, messages, image in questions:
            found[kind][name] = kept(encode(messages, image), token)
        yield model, found


def versions() -> Iterator[tuple[str, str]]:
    for package in PACKAGES:
        try:
            yield package, version(package)
        except PackageNotFoundError:
            continue


def main(trainer: str, cases: str, out: str) -> None:
    """Record all cases with one trainer."""
    os.environ.update({"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "", "HF_DATASETS_CACHE": tempfile.mkdtemp()})
    folder = Path(cases).absolute()
    if trainer in WEIGHERS:
        asked = json.loads((folder / "cases.json").read_text())["weighted"]
        weigh = WEIGHERS[trainer](folder / "qwen3")
        found = {cut: {name: weigh(case) for name, case in each.items()} for cut, each in asked.items()}
        made = {"versions": dict(versions()), "cuts": found}
    else:
        made = {"versions": dict(versions()), "models": dict(record(TRAINERS[trainer], folder))}
    text = json.dumps(made, indent=1)
    Path(out).write_text(compact(text) + "\n")


def compact(text: str) -> str:
    """Return JSON with every innermost list on one line."""
    return re.sub(r"\[[^][{}]*\]", lambda found: " ".join(found[0].split()), text)


if __name__ == "__main__":
    main(*sys.argv[1:])
