"""From samples to tokens and images, and to the tensors of one pass."""
