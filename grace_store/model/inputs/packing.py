"""Positions of tokens where a model does not find them by itself. Knows nothing of batches or texts."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from grace_store.model.head.own_forward import backbone_of


def packed_positions(model: nn.Module, inputs: Mapping[str, Tensor], lengths: Sequence[int]) -> Tensor:
    """Return position_ids (1, tokens), or (4, 1, tokens) where the family has positions in images too.

    Those are, row by row: within the sample, by which samples are told apart; then time, height and width.
    """
    within: Tensor = inputs["position_ids"]
    if not has_image_positions(model, inputs):
        return within
    device = within.device
    rows = {
        name: pad_sequence(list(torch.split_with_sizes(inputs[name][0], list(lengths))), batch_first=True)
        for name in ("input_ids", "mm_token_type_ids")
    }
    longest = rows["input_ids"].shape[1]
    mask = torch.arange(longest, device=device) < torch.tensor(lengths, device=device).unsqueeze(1)
    positions = image_positions(model, rows, inputs["image_grid_thw"], mask)
    return torch.cat((within.unsqueeze(0), positions[:, mask].unsqueeze(1)))


def has_image_positions(model: nn.Module, inputs: Mapping[str, Tensor]) -> bool:
    """Tell whether tokens have positions in time, height and width, as there are images and the family has these."""
    return "image_grid_thw" in inputs and hasattr(backbone_of(model), "get_rope_index")


def image_positions(model: nn.Module, rows: Mapping[str, Tensor], grid: Tensor, mask: Tensor) -> Tensor:
    """Return positions in time, height and width, (3, samples, longest), of samples padded on the right."""
    given = {name: rows[name] for name in ("input_ids", "mm_token_type_ids")}
    positions: Tensor = backbone_of(model).get_rope_index(**given, image_grid_thw=grid, attention_mask=mask.long())[0]
    return positions
