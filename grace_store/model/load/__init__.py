"""Load models and adapters from folders."""
