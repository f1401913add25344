"""The command line: parse, call one function, print. Errors become messages here and only here."""

from grace_store.cli.main import main

__all__ = ["main"]
