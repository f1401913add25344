"""Jobs that read a store: score, sweep, select, compare, duplicates, diversity and more."""
