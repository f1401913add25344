"""Samples as points in space: duplicates, neighbours, clusters. The only package that knows faiss."""
