"""Projected gradients of LoRA parameters."""
