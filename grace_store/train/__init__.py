"""Training LoRA adapters: the warm-up, and what a trial trains with."""
