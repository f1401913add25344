"""Curate reasoning traces by how their steps would train a model."""

__version__ = "0.1.0"

__all__ = ["__version__"]
