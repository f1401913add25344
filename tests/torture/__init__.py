"""Torture: what can break is broken on purpose, and what must survive is counted.

Each module is one kind of torture and runs alone (``python -m tests.torture.rot --seed 1 --count 500``); the package
runs them all (``python -m tests.torture``, which is ``make torture``) and prints one table.
"""
