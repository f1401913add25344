"""Pool: which samples of a store, and walking them in blocks, vectors and records. Imports no model."""
