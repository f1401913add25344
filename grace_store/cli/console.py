"""What every command prints with: results on stdout, logs on stderr, errors as messages, exit codes."""

from __future__ import annotations

import errno
import json
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

import click
from pydantic import ValidationError
from rich.console import Console

from grace_store.base.errors import GraceStoreError, Interrupted
from grace_store.base.text import counted, one_line, without_nan

if TYPE_CHECKING:
    from grace_store.artifacts.notes import WhereNote

EXIT_INTERRUPTED = 130
EXTRAS = {
    **dict.fromkeys(("torch", "transformers", "tokenizers", "safetensors", "PIL", "jinja2", "gguf"), "extract"),
    "peft": "warmup",
    "faiss": "faiss",
    **dict.fromkeys(("plotly", "kaleido"), "report"),
    "ray": "ray",
    "obstore": "cloud",
    **dict.fromkeys(("igraph", "leidenalg"), "cadc"),
}
"""Which extra brings a module that the core does without."""

# Soft wrapping leaves lines whole for terminals to wrap and for logs to keep.
log = Console(stderr=True, highlight=False, soft_wrap=True)
out = Console(highlight=False)


@contextmanager
def told() -> Iterator[None]:
    """Turn every expected error into one message and an exit code."""
    try:
        yield
    except Interrupted as error:
        click.echo(str(error), err=True)
        raise click.exceptions.Exit(EXIT_INTERRUPTED) from None
    except GraceStoreError as error:
        notes = "".join(f"\n  {note}" for note in getattr(error, "__notes__", []))
        raise click.ClickException(harmless(f"{error}{notes}")) from None
    except ValidationError as error:
        from grace_store.base.settings import one_sentence

        raise click.ClickException(one_sentence(error)) from None
    except ModuleNotFoundError as error:
        extra = EXTRAS.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        text = f"This needs {error.name}, which is not installed. Run `pip install 'grace-store[{extra}]'`."
        raise click.ClickException(text) from None
    except BrokenPipeError:
        raise  # nobody reads on, as after `| head`: click ends the command without a message
    except OSError as error:
        raise click.ClickException(_os_error(error)) from None


def _os_error(error: OSError) -> str:
    where = f" ({error.filename})" if error.filename else ""
    text = f"{error.strerror or error}{where}."
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        # Stores keep what is committed; of a table, a subset or a page nothing appears before all of it is there.
        return (
            f"{text} Everything committed is kept and nothing half-written: make room and run the same command again."
        )
    return text


@contextmanager
def stoppable(after: str = "the units under way") -> Iterator[threading.Event]:
    """Yield an event that Ctrl-C or SIGTERM sets; a second Ctrl-C stops at once. The job stops after what is named."""
    stop = threading.Event()

    def ask(number: int, frame: FrameType | None) -> None:
        if stop.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        stop.set()
        click.echo(f"\nStopping after {after}; Ctrl-C again to stop at once.", err=True)

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    except KeyboardInterrupt:
        raise Interrupted("Stopped at once. What was committed is kept: run the same command again to go on.") from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def print_json(value: Any) -> None:
    """Write a result for machines to stdout; null stands for a number that could not be had."""
    click.echo(json.dumps(without_nan(value), indent=2, ensure_ascii=False, allow_nan=False))


def print_result(result: Any, printer: Callable[..., None], *arguments: Any, as_json: bool) -> None:
    """Write a result to stdout: as JSON for machines, or as a command's own printer shows it to people."""
    if as_json:
        print_json(result)
    else:
        printer(*arguments)


def fields_of(found: Any, *names: str) -> dict[str, Any]:
    """Return some of the fields of what a job found, for its result as JSON."""
    return {name: getattr(found, name) for name in names}


def harmless(text: str) -> str:
    """Return text from a dataset with control characters spelled out: a terminal must show them, not obey them."""
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text)


def where_line(where: WhereNote | None) -> str:
    """Return what a filter kept, as a line of a result; nothing without one."""
    if where is None:
        return ""
    kept = f"{where.num_kept} of {counted(where.num_samples, 'sample')}"
    return f"  where {harmless(one_line(where.sql))}: {kept}; shares are of these {where.num_kept}\n"


def print_rows(rows: Sequence[Sequence[str]]) -> None:
    """Write a table to stdout, its columns as wide as their widest cell."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        click.echo("  " + "  ".join(cells).rstrip())


def number(value: float, digits: int = 3, missing: str = "-") -> str:
    """Return a number for a column, or what stands for one that could not be had."""
    return missing if value != value else f"{value:.{digits}f}"
