"""Choosing: Selection, what applies it to a table, near-duplicates, comparisons of subsets, exports to trainers."""
