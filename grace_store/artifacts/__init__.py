"""What commands write and read back: tables, subsets, sweeps, pictures, each with a typed note of what made it."""
