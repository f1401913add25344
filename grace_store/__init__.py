"""Curate reasoning traces by how their steps would train a model."""
