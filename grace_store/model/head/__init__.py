"""From hidden states to segment vectors."""
