"""The LoRA warm-up."""
