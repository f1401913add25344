"""Positions of samples that lie end to end in one row. Knows nothing of batches or texts."""

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
    backbone = backbone_of(model)
    grid = inputs.get("image_grid_thw")
    if grid is None or not hasattr(backbone, "get_rope_index"):
        return within
    device = within.device
    rows = {
        name: pad_sequence(list(torch.split_with_sizes(inputs[name][0], list(lengths))), batch_first=True)
        for name in ("input_ids", "mm_token_type_ids")
    }
    longest = rows["input_ids"].shape[1]
    mask = torch.arange(longest, device=device) < torch.tensor(lengths, device=device).unsqueeze(1)
    positions, _ = backbone.get_rope_index(**rows, image_grid_thw=grid, attention_mask=mask.long())
    return torch.cat((within.unsqueeze(0), positions[:, mask].unsqueeze(1)))
