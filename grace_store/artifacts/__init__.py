"""What commands write and read back: tables, subsets, sweeps, each with a typed note of what made it."""
