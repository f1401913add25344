"""Conversations as ms-swift reads them: messages with one ``<image>`` for each image, and the images' paths.

With weights, a response is several assistant messages with a ``loss_scale`` each, which ms-swift joins again.
"""

from collections.abc import Sequence
from typing import Any

from grace_store.choose.exports.conversations import write_weighted
from grace_store.choose.exports.export_kind import ChosenRecords, Export, Exported, Part


def swift_messages(messages: list[dict[str, Any]], parts: Sequence[Part]) -> list[dict[str, Any]]:
    """Return a conversation with its last message in parts; earlier messages of the assistant have weight 0.

    Before a response without a thought, the templates of some models put an empty thought into the first message of
    the response. So a message without text and weight comes first: else the thought had the weight of the first step.
    """
    asked = [each | ({"loss_scale": 0.0} if each["role"] == "assistant" else {}) for each in messages[:-1]]
    nothing = [] if parts[0].text.startswith("<think>") else [Part("", 0.0)]
    said = [{"role": "assistant", "content": part.text, "loss_scale": part.weight} for part in [*nothing, *parts]]
    return [*asked, *said]


def _write(chosen: ChosenRecords, exported: Exported) -> None:
    write_weighted(chosen, exported, swift_messages)
    if chosen.weights is not None and not chosen.weights.is_mask:
        exported.notes.append(
            "train with --is_binary_loss_scale false (ms-swift from 4.4 on, its default template backend): without it "
            "every weight above 0 trains as if it were 1"
        )


EXPORT = Export(write=_write, weights="any")
