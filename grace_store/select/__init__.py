"""Values to subsets, and subsets to files in the users' formats."""
