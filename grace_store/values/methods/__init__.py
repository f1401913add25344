"""Methods that score by the influence on a target set, one module each; method.py has their list."""
