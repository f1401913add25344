"""Train LoRA adapters, for the warm-up and for trials."""
