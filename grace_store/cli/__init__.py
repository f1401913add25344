"""The command line: parse arguments, call one function, print its result. Only this room turns errors into messages."""

from grace_store.cli.main import main

__all__ = ["main"]
