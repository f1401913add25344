"""Gradients and projections by definition: autograd of the whole model, and matrices written out entry by entry."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from peft import PeftModel

from grace_store.base.settings import ExtractSpec, GradientSpec, RunOptions
from grace_store.model.gradients.gradient_extractor import GradientExtractor
from grace_store.model.load.weights import load
from grace_store.model.open_model import open_extractor, resolve_spec
from grace_store.train.adapter_trainer import attach_fresh_adapter

ONE_THREAD = RunOptions(device="cpu", threads=1)
Floats = npt.NDArray[np.float64]


# ---------------------------------------------------------------- projections, from schemas/FORMAT.md


def philox_block(seed: int, counter: tuple[int, int, int, int]) -> list[int]:
    """Return the four words of a block, in Python's own integers."""
    mask = 2**32 - 1
    c, key = list(counter), [seed & mask, seed >> 32]
    for _ in range(10):
        left, right = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [right >> 32 ^ c[1] ^ key[0], right & mask, left >> 32 ^ c[3] ^ key[1], left & mask]
        key = [(key[0] + 0x9E3779B9) & mask, (key[1] + 0xBB67AE85) & mask]
    return c


@functools.cache
def _bits(seed: int, counter: tuple[int, int, int, int]) -> list[int]:
    return [1 - 2 * (word >> bit & 1) for word in philox_block(seed, counter) for bit in range(32)]


def rademacher_matrix(num_coordinates: int, dimension: int, seed: int, start: int = 0) -> Floats:
    """Return the rows of coordinates start.. of the dense projection."""
    rows = [
        [_bits(seed, (i % 2**32, i >> 32, j // 128, 0))[j % 128] for j in range(dimension)]
        for i in range(start, start + num_coordinates)
    ]
    return np.array(rows, dtype=np.float64) / np.sqrt(dimension)


def sparse_matrix(num_coordinates: int, dimension: int, seed: int, start: int = 0) -> Floats:
    """Return the rows of coordinates start.. of the sparse projection."""
    matrix = np.zeros((num_coordinates, dimension))
    part = dimension // 4
    for i in range(start, start + num_coordinates):
        run, block = i // part, i // 128
        shifts = philox_block(seed, (run % 2**32, run >> 32, 0, 1))
        for q in range(4):
            sign = _bits(seed, (block % 2**32, block >> 32, q, 2))[i % 128]
            matrix[i - start, q * part + (i + shifts[q]) % part] += sign / 2
    return matrix


MATRICES = {"rademacher": rademacher_matrix, "sparse": sparse_matrix}


# ---------------------------------------------------------------- adapters and gradients


def make_adapter(model: Path, folder: Path, *, rank: int = 2, seed: int = 0) -> Path:
    """Save a LoRA adapter with random values in both factors, on all linear layers of the language part."""
    loaded = load(model, "float32", "eager", "cpu", 1)
    adapted = attach_fresh_adapter(loaded.model, rank, 2 * rank, seed, str(model))
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)
    adapted.save_pretrained(folder)
    return folder


def open_gradient(model: Path, adapter: Path, request: ExtractSpec | None = None, **wishes: Any) -> GradientExtractor:
    """Return the extractor that a spec resolved for some wishes, those for gradients by their names, opens."""
    wanted = {"kind": "gradient", "gradient": GradientSpec(**wishes)}
    whole = (request or ExtractSpec()).model_copy(update=wanted)
    spec = resolve_spec(str(model), whole, ONE_THREAD, adapter=str(adapter))
    extractor = open_extractor(str(model), spec, ONE_THREAD, adapter=str(adapter))
    assert isinstance(extractor, GradientExtractor)
    return extractor


class TrueGradients:
    """Autograd of a model that peft itself put the adapter on, one sample at a time, from its loss alone."""

    def __init__(self, model: Path, adapter: Path, extractor: GradientExtractor) -> None:
        loaded = load(model, "float32", "eager", "cpu", 1)
        self._extractor = extractor
        self._model: Any = PeftModel.from_pretrained(loaded.model, str(adapter), is_trainable=True).eval()
        named = {self._plain_name(name): p for name, p in self._model.named_parameters() if p.requires_grad}
        self.parameters = {name: named[name] for name in sorted(named)}
        """In the order of the coordinates."""

    @staticmethod
    def _plain_name(name: str) -> str:
        return re.sub(r"^base_model\.model\.|\.default|\.weight$", "", name)

    @property
    def num_coordinates(self) -> int:
        return sum(parameter.numel() for parameter in self.parameters.values())

    def of(self, sample: Any) -> tuple[Floats, Floats]:
        """Return the gradient of the mean loss over all segments, and those of each segment: (P,) and (K + 1, P)."""
        prepared = self._extractor.prepare([sample])
        tokens = prepared.tokens[0]
        inputs = {"input_ids": torch.from_numpy(tokens.ids).unsqueeze(0)}
        inputs |= {name: torch.from_numpy(values).unsqueeze(0) for name, values in tokens.token_inputs.items()}
        if prepared.images:
            inputs |= prepared.images[0].inputs()
        logits = self._model(**inputs, use_cache=False).logits[0].double()
        positions = np.flatnonzero(tokens.segment >= 0)
        whole = self._gradient(logits, tokens.ids, positions)
        segments = [
            self._gradient(logits, tokens.ids, np.flatnonzero(tokens.segment == k)) for k in range(tokens.num_segments)
        ]
        return whole, np.stack(segments)

    def _gradient(self, logits: torch.Tensor, ids: npt.NDArray[np.int64], positions: npt.NDArray[np.int64]) -> Floats:
        loss = torch.nn.functional.cross_entropy(logits[positions - 1], torch.from_numpy(ids[positions]))
        found: Any = [None] * len(self.parameters)
        if loss.requires_grad:
            found = torch.autograd.grad(loss, list(self.parameters.values()), retain_graph=True, allow_unused=True)
        flat = [
            torch.zeros_like(parameter).flatten() if gradient is None else gradient.flatten()
            for parameter, gradient in zip(self.parameters.values(), found, strict=True)
        ]
        return torch.cat(flat).double().numpy()
