"""An accelerator that is not there, for the tests: README.md says what it does, processes.py how to have it."""
