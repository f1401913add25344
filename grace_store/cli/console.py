"""The output of every command: results on stdout, logs on stderr, errors as messages with exit codes."""

import errno
import json
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import click
from pydantic import ValidationError
from rich.console import Console

from grace_store.base.documents import write_document
from grace_store.base.errors import GraceStoreError, Interrupted, SettingNeeded, how_to_install
from grace_store.base.finding import UNKNOWN, Finding, WhereNote
from grace_store.base.text import counted, one_line, without_nan

EXTRAS = {
    **dict.fromkeys(("torch", "transformers", "tokenizers", "safetensors", "PIL", "jinja2", "gguf"), "extract"),
    "peft": "warmup",
    "faiss": "faiss",
    **dict.fromkeys(("plotly", "kaleido"), "report"),
    "ray": "ray",
    "obstore": "cloud",
    **dict.fromkeys(("igraph", "leidenalg"), "cadc"),
}
"""The extra that installs each optional module."""

# With soft wrapping, a log file keeps whole lines; terminals wrap them.
log = Console(stderr=True, highlight=False, soft_wrap=True)
console = Console(highlight=False)


@contextmanager
def errors_as_messages() -> Iterator[None]:
    """Turn every expected error into one message and an exit code."""
    try:
        yield
    except Interrupted as error:
        click.echo(str(error), err=True)
        raise click.exceptions.Exit(130) from None  # as shells do after Ctrl-C
    except GraceStoreError as error:
        notes = "".join(f"\n  {note}" for note in getattr(error, "__notes__", []))
        kind = click.UsageError if isinstance(error, SettingNeeded) else click.ClickException
        raise kind(escape_controls(f"{error}{notes}")) from None
    except ValidationError as error:
        from grace_store.base.settings import one_sentence

        raise click.ClickException(one_sentence(error)) from None
    except ModuleNotFoundError as error:
        extra = EXTRAS.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        text = f"This needs {error.name}, but {error.name} is not installed. {how_to_install(extra)}"
        raise click.ClickException(text) from None
    except BrokenPipeError:
        raise  # the reader is gone, for example after `| head`: click ends the command without a message
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        text = f"{error.strerror or error}{where}."
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            # A store keeps its committed units; a table, a subset or a page appears only when it is complete.
            text += " Everything committed is kept and no file is half-written: make room and run the same again."
        raise click.ClickException(text) from None


@contextmanager
def stoppable(after: str = "the units under way") -> Iterator[threading.Event]:
    """Yield an event that Ctrl-C or SIGTERM sets. A second Ctrl-C stops at once.

    after names the work that the command finishes before it stops.
    """
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
        raise Interrupted("Stopped at once. All committed work is kept. Run the same command again to go on.") from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def print_json(value: Any) -> None:
    """Write a result to stdout as JSON. An unknown number becomes null."""
    click.echo(json.dumps(without_nan(value), indent=2, ensure_ascii=False, allow_nan=False))


def print_result(result: Any, printer: Callable[..., None], *arguments: Any, as_json: bool) -> None:
    """Write a result to stdout as JSON, or call the command's own printer with the arguments."""
    if as_json:
        print_json(result)
    else:
        printer(*arguments)


def escape_controls(text: str) -> str:
    """Return text with escaped control characters: a terminal shows them and does not obey them."""
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text)


def filter_lines(noted: Any, num: int | None = None) -> str:
    """Return a line for the filter and one for the file of labels of a note; empty without any.

    num is the number of samples that shares are of, if the filter alone does not decide it.
    """
    lines = ""
    if isinstance(where := noted.where, WhereNote):
        kept = f"{where.num_kept} of {counted(where.num_samples, 'sample')}"
        kept += f"; shares are of these {where.num_kept}" if num in (None, where.num_kept) else ""
        lines += f"  where {escape_controls(one_line(where.sql))}: {kept}\n"
    return lines + ("" if noted.labels is None else f"  labels {escape_controls(str(noted.labels))}\n")


def show(found: Finding, out: Path | None = None, *, as_json: bool, most: int | None = None) -> None:
    """Write a finding to stdout, as JSON or as conclusion, tables and notes, and to a file if one is given.

    most limits the rows of each table on the terminal.
    """
    if out is not None:
        write_document(out, found)
    if as_json:
        print_json(found.to_json())
        return
    click.echo(escape_controls(found.conclusion))
    if found.pool is not None:
        click.echo(filter_lines(found.pool), nl=False)
        if found.pool.partial:
            click.echo("  partial: the store is not finished.")
    for table in found.tables.values():
        if not table.is_shown:
            continue
        click.echo()
        if table.title:
            click.echo(escape_controls(table.title))
        texts = table.texts()
        for rows in fitting(
            texts[: None if most is None else most + 1], console.width if console.is_terminal else None
        ):
            print_rows(rows)
        if most is not None and len(table) > most:
            click.echo(f"  and {len(table) - most} more")
        if table.about:
            click.echo(f"  {escape_controls(table.about)}")
    for note in found.notes:
        click.echo(escape_controls(note))
    if out is not None:
        click.echo(f"{out}: the finding was written.")


def print_rows(rows: Sequence[Sequence[str]]) -> None:
    """Write a table to stdout, headings first. Columns of numbers are aligned right."""
    rows = [[escape_controls(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    is_number = [all(_is_number(row[column]) for row in rows[1:]) for column in range(len(widths))]
    for row in rows:
        cells = [
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, is_number, strict=True)
        ]
        click.echo("  " + "  ".join(cells).rstrip())


def _is_number(text: str) -> bool:
    return text == UNKNOWN or text.removesuffix(" %").replace(",", "").lstrip("+-").replace(".", "", 1).isdigit()


def fitting(rows: Sequence[Sequence[str]], width: int | None) -> Iterator[list[list[str]]]:
    """Yield a table in parts that fit into a width. Each part has the first column.

    >>> list(fitting([["a", "bb", "cc"]], 9))
    [[['a', 'bb']], [['a', 'cc']]]
    """
    sizes = [2 + max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    columns = [0]
    for column in range(1, len(sizes)):
        if width is not None and len(columns) > 1 and sum(sizes[each] for each in columns) + sizes[column] > width:
            yield [[row[each] for each in columns] for row in rows]
            columns = [0]
        columns.append(column)
    yield [[row[each] for each in columns] for row in rows]
