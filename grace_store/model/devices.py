"""Which accelerators are there. Asks torch, loads nothing."""

import torch


def count_gpus() -> int:
    """Return how many CUDA devices this process may use."""
    return torch.cuda.device_count() if torch.cuda.is_available() else 0
