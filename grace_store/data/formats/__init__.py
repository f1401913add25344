"""Record formats: the list of all, and the readers of conversations and of mapped parts that several share."""
