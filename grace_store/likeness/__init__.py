"""Vectors to duplicates, neighbours, clusters and diverse orders. The only importer of faiss; knows no store."""
