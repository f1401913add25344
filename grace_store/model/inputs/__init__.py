"""Turn samples into tokens, images and the tensors of a forward pass."""
