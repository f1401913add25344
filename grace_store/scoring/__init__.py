"""Scoring: jobs that turn signals into tables of values, sweeps and step weights, and those tables."""
