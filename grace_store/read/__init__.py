"""Walking a store: blocks of Grams, vectors, descriptors, records."""
