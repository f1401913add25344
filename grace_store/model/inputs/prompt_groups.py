"""Which samples of a unit have the same prompt. Knows tokens, and no model.

Samples of one prompt have the same tokens, and the same images, before their responses. All of these but the last
token run through the model once; each response follows, that last token before it, so that whatever predicts a token
of a response is in the pass of the response.
"""

import hashlib
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from grace_store.model.inputs.batches import PromptLengths
from grace_store.model.inputs.tokens import TokenizedSample


def find_groups(
    tokens: Mapping[int, TokenizedSample], images: Mapping[int, Sequence[str]], image_ids: Collection[int]
) -> list[list[int]]:
    """Return the positions of samples that have the same prompt, group by group; images are digests of each sample's.

    A prompt whose last token stands for an image is not shared: images must not be cut in two.
    """
    groups: dict[bytes, list[int]] = {}
    for position, sample in tokens.items():
        length = sample.num_prompt_tokens
        if length and int(sample.ids[length]) not in image_ids:
            groups.setdefault(_digest(sample, length, images.get(position, ())), []).append(position)
    return list(groups.values())


def prompt_lengths(tokens: Mapping[int, TokenizedSample]) -> PromptLengths:
    """Return the lengths of samples' prompts and responses."""
    prompt = {position: sample.num_prompt_tokens for position, sample in tokens.items()}
    return PromptLengths(prompt, {i: sample.num_tokens - prompt[i] for i, sample in tokens.items()})


def _digest(sample: TokenizedSample, length: int, images: Sequence[str]) -> bytes:
    digest = hashlib.blake2b(np.ascontiguousarray(sample.ids[:length]).tobytes(), digest_size=16)
    for name, values in sample.token_inputs.items():
        digest.update(name.encode() + np.ascontiguousarray(values[:length]).tobytes())
    for image in images:
        digest.update(image.encode())
    return digest.digest()
