"""Conditions of --where and --right: WHERE clauses of SQL, which SQLite evaluates. The only importer of sqlite3.

An expression may come from a stranger, in the note of a table that is scored again here. So SQLite may only read the
columns of these rows and call pure functions with short results. It may read no other table, run no SELECT inside the
expression, and write, open or load nothing. Limits on length, depth and instructions bound the cost of an expression.
"""

from __future__ import annotations

import math
import re
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import takewhile
from uuid import uuid4

from grace_store.base.errors import SettingError
from grace_store.base.text import counted, one_line
from grace_store.data.record import MAX_RECORD_BYTES

_ROUNDING = ("abs", "ceil", "ceiling", "floor", "max", "min", "mod", "round", "sign", "trunc")
_POWERS = ("exp", "ln", "log", "log10", "log2", "pow", "power", "sqrt")
_TEXTS = ("glob", "instr", "length", "like", "lower", "ltrim", "rtrim", "substr", "substring", "trim", "upper")
_JSON = ("->", "->>", "json_array_length", "json_extract", "json_type", "json_valid")
_ANY = ("coalesce", "ifnull", "iif", "likely", "nullif", "typeof", "unicode", "unlikely")
FUNCTIONS = frozenset((*_ROUNDING, *_POWERS, *_TEXTS, *_JSON, *_ANY))
"""All functions that an expression may call. None is random, reads the clock or the machine, or makes long results."""
MAX_CHARACTERS = 65_536
MAX_NAMES = 100
"""Largest number of different fields in an expression."""
MAX_INSTRUCTIONS = 50_000_000
"""Instructions of SQLite for one call of keeps; an expression without loops needs a few thousand for each row."""
MAX_SECONDS = 20.0
"""Processor time of one call of keeps: a function over long texts is one instruction."""
LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: MAX_RECORD_BYTES,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: MAX_CHARACTERS * 4 + 1024,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 500,
    sqlite3.SQLITE_LIMIT_VDBE_OP: 50_000,
    sqlite3.SQLITE_LIMIT_FUNCTION_ARG: 100,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 1000,
    sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH: 1,
    sqlite3.SQLITE_LIMIT_WORKER_THREADS: 0,
}
_INSTRUCTIONS_BETWEEN_LOOKS = 1000
_FUNCTION_LIST = ", ".join(sorted(name for name in FUNCTIONS if name[0].isalpha()))
_NOT_CODE = re.compile(r"'(?:[^']|'')*'|--[^\n]*|/\*.*?(?:\*/|\Z)", re.DOTALL)
"""Texts and comments."""
_PARTS = re.compile(_NOT_CODE.pattern + r'|"(?P<name>(?:[^"]|"")*)"', re.DOTALL)
_NUMBER = re.compile(r"\s*[-+]?(?:\d{1,300}(?:\.\d{0,300})?|\.\d{1,300})(?:[eE][-+]?\d{1,3})?\s*", re.ASCII)
_IS_NUMBER = r"(?:num_steps|num_tokens|row|value)\b|(?:\d[\d.]*|\.\d+)(?:e[-+]?\d+)?"
"""What is surely a number in a condition: a column of the plan or the scores, or digits."""
_LITERAL = re.compile(r"(?<![\w.])[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?", re.IGNORECASE)
_ORDER = r"(?:<=?(?!>)|(?<!<)>=?)"
_EQUAL = r"(?:==?|<>|!=)"
_ON_COLUMN = rf"\b(?:{'|'.join(name for name in FUNCTIONS - {'coalesce', 'ifnull'} if name[0].isalpha())})\s*\([\s(]*"
"""The beginning of a function's call, whose result is compared, not its column."""
_NO_COLUMN = re.compile(r'no such column: (?:"(?P<quoted>.*)" - should this be .*|(?P<plain>.*))', re.DOTALL)


class FilterExpression:
    """A parsed expression: the columns that it reads, and the rows that it keeps.

    SQLite orders every text after every number. So where a column is compared with numbers, texts such as "3" are read
    as numbers, and other texts are refused if the result depends on their order.
    """

    known: list[str]
    """The known columns that the expression reads."""

    def __init__(self, text: str, known: Sequence[str] = (), option: str = "--where") -> None:
        """Parse an expression of an option, or raise SettingError; known are columns that exist without the records."""
        self._option = option
        if not text.strip():
            raise SettingError(f"{option} is empty: give a condition, such as \"num_steps > 8 and source = 'a'\"")
        if len(text) > MAX_CHARACTERS:
            raise SettingError(f"{option} has {len(text)} characters, more than {MAX_CHARACTERS}")
        if text != text.encode("utf-8", "replace").decode():
            raise SettingError(f"{option} {one_line(text)!r} has characters that are not valid text")
        self.text = text
        quoted = (match["name"] for match in _PARTS.finditer(text) if match["name"] is not None)
        # SQLite reads a name in double quotes as a text if there is no such column, so these columns exist first.
        self.quoted = dict.fromkeys(name.replace('""', '"') for name in quoted)
        self._columns, self._num_known = list(known), len(known)
        self._read: set[str] = set()
        by_column = {name.lower(): name for name in reversed([*known, *self.quoted])}
        self._columns += [name for name in self.quoted if by_column[name.lower()] == name and name not in known]
        while (missing := self._missing()) is not None:
            if missing.lower() in (each.lower() for each in self._columns):
                raise SettingError(f'{option} has {missing}: write a name with a dot in double quotes, "{missing}"')
            self._columns.append(missing)
            if len(self.names) > MAX_NAMES:
                raise SettingError(f"{option} names more than {MAX_NAMES} fields")
        names, self.known = self.names, [name for name in known if name in self._read]
        self._columns, self._num_known = [*self.known, *names], len(self.known)
        self._check_spelling()
        self._code = _NOT_CODE.sub(_without_text, text)
        is_compared = [self._is_compared(name) for name in self._columns]
        self._numeric = [place for place, (_, is_numeric) in enumerate(is_compared) if is_numeric]
        self._ordered = [place for place, (is_ordered, _) in enumerate(is_compared) if is_ordered]
        self.is_by_value = not self._ordered  # equal rows may be tried once: no texts are counted
        self._tried = list(dict.fromkeys(map(float, _LITERAL.findall(self._code))))[:20]
        self._misfits: dict[str, tuple[int, str]] = {}
        """Number of texts that are no numbers where numbers are compared, and the first of them, by column."""

    @property
    def names(self) -> list[str]:
        """The fields of records that the expression reads, as they are first spelled."""
        return self._columns[self._num_known :]

    def keeps(self, rows: Sequence[Sequence[object]], *, negated: bool = False) -> list[int]:
        """Return the indices of the rows for which the expression is true, or, if negated, false (and not NULL).

        A row has self.known, then self.names.
        """
        condition = f"{'not ' if negated else ''}((\n{self.text}\n))"
        if self._numeric:
            rows = [_with(row, {place: _as_number(row[place]) for place in self._numeric}) for row in rows]
        with closing(_Engine(self._columns)) as engine, self._explained(engine):
            kept = engine.places(rows, condition)
            for place in () if negated else self._ordered:  # texts are counted once
                if not (texts := [row for row in rows if isinstance(row[place], str)]):
                    continue
                # If the order of a text matters, the least and the greatest number give different results, or the text
                # is kept and a number of the expression is not.
                least, most, *others = (
                    set(engine.places([_with(row, {place: number}) for row in texts], condition))
                    for number in (-math.inf, math.inf, *self._tried)
                )
                beyond = set(engine.places(texts, condition)) - least.intersection(most, *others)
                if misfits := sorted((least ^ most) | beyond):
                    num, first = self._misfits.get(self._columns[place], (0, str(texts[misfits[0]][place])))
                    self._misfits[self._columns[place]] = (num + len(misfits), first)
        return kept

    def check_texts(self) -> None:
        """Raise SettingError if the rows so far had texts that are no numbers where numbers are compared."""
        for name, (num, text) in self._misfits.items():
            raise SettingError(
                f"{self._option} {one_line(self.text)!r} compares {name} with a number, but {name} is a text that is "
                f"not a number in {counted(num, 'sample')}, such as {one_line(text)!r}. To leave out all texts, add: "
                f"typeof({name}) <> 'text'. To read such a text as 0, write: cast({name} as real)"
            )

    def _is_compared(self, name: str) -> tuple[bool, bool]:
        """Return whether a column's order is compared with a number, and whether its order or its value is.

        A column whose type the expression asks for, with typeof, is left as it is. Raise SettingError if the column is
        also compared with a text that it would no longer equal as a number.
        """
        escaped = re.escape(name.replace('"', '""'))
        bare = rf"""(?:"{escaped}"|\[{escaped}\]|`{escaped}`|(?<![\w.$"'`\[]){escaped}(?![\w.$"'`\]]))"""
        column = (
            rf"(?:(?:coalesce|ifnull)\s*\(\s*{bare}\s*,[^()]{{0,200}}\)|(?:\(\s*){{1,9}}{bare}(?:\s*\)){{1,9}}|{bare})"
        )
        code = re.sub(_ON_COLUMN + bare, "f(''", self._code, flags=re.IGNORECASE)

        def is_in(pattern: str, code: str = code) -> bool:
            return re.search(pattern, code, re.IGNORECASE) is not None

        is_typed = is_in(rf"typeof\s*\(\s*{bare}\s*\)", self._code)
        if is_typed or (name in self.known and re.fullmatch(_IS_NUMBER, name)):
            return False, False
        first, last = rf"[-+(\s]*(?:{_IS_NUMBER})", rf"(?<![\w.])(?:{_IS_NUMBER})\s*"
        is_ordered = is_in(rf"{column}\s*(?:{_ORDER}|(?:not\s+)?between\b){first}|{last}{_ORDER}\s*{column}")
        is_listed = is_in(rf"{column}\s*(?:not\s+)?in\s*\((?:[^()]*,)?\s*[-+]?(?:{_IS_NUMBER})")
        is_numeric = is_ordered or is_listed or is_in(rf"{column}\s*{_EQUAL}{first}|{last}{_EQUAL}\s*{column}")
        whole = re.findall(r"(?<![\w.])\d{19,300}(?![\w.])", code)
        if is_numeric and not is_ordered and (long := [each for each in whole if int(each) >= 2**63]):
            told = f"{name} with {long[0]}, but SQL rounds this number. If {name} is a text, write '{long[0]}'"
            raise SettingError(f"{self._option} {one_line(self.text)!r} compares {told}")
        after = rf"(?:like|glob)\b|in\s*\([^()]*'0'|{_EQUAL}[(\s]*'0'|(?:{_ORDER}|between\s+(?:\S+\s+and\b)?)[(\s]*'"
        texts = rf"{column}\s*(?:not\s+)?(?:{after})|'0'\s*{_EQUAL}\s*{column}|'\s*{_ORDER}\s*{column}"
        if is_numeric and is_in(rf"{texts}|cast\s*\(\s*{bare}\s+as\s+text\b"):
            raise SettingError(
                f"{self._option} {one_line(self.text)!r} compares {name} with a number and with a text. Where the "
                f"number stands, write: cast({name} as real). Or write numbers without quotes"
            )
        return is_ordered, is_numeric

    def _missing(self) -> str | None:
        """Return a name in the expression that is no column yet; None if SQLite can evaluate the expression."""
        with closing(_Engine(self._columns)) as engine:
            try:
                with self._explained(engine):
                    # Text that closes one pair of parentheses and goes on is invalid with one pair, or with two.
                    for condition in (f"((\n{self.text}\n))", f"(\n{self.text}\n)"):
                        engine.places([], condition)
                        self._read = engine.watch.read
            except _NoColumn as missing:
                return str(missing)
        return None

    def _check_spelling(self) -> None:
        """Raise SettingError for two names that differ only in capitals: SQLite reads one column for both."""
        code = _NOT_CODE.sub(" ", self.text)
        for name in self.names:
            found = re.findall(rf"(?<!\w){re.escape(name)}(?!\w)", code, re.IGNORECASE)
            if len(written := dict.fromkeys([name, *found])) > 1:
                both = " and ".join(list(written)[:2])
                raise SettingError(
                    f"{self._option} has {both}. SQL ignores upper and lower case: write the field in one way only"
                )

    @contextmanager
    def _explained(self, engine: _Engine) -> Iterator[None]:
        """Turn an error of SQLite into a sentence about the expression."""
        try:
            yield
        # Python 3.11 raises Warning for a second statement.
        except (sqlite3.Error, sqlite3.Warning, ValueError, OverflowError) as error:
            said = str(error)
            if engine.watch.refused is None and (missing := _NO_COLUMN.fullmatch(said)):
                raise _NoColumn(missing["plain"] if missing["quoted"] is None else missing["quoted"]) from None
            why = self._in_words(one_line(said), engine.watch.refused)
            raise SettingError(f"{self._option} {one_line(self.text)!r}: {why}") from None

    def _in_words(self, said: str, refused: str | None) -> str:
        if refused is not None:
            return f"{refused} is not allowed. A condition has fields, operators and the functions {_FUNCTION_LIST}"
        if "no such function" in said:
            return f"there is {said.replace('such ', '')}. There are {_FUNCTION_LIST}"
        if "syntax error" in said or "unrecognized token" in said or "incomplete input" in said:
            named = re.search(r'"(.*)"', said)
            is_once = named is not None and self.text.count(named[1]) == 1
            where = f", at character {self.text.index(named[1]) + 1}" if named is not None and is_once else ""
            return f"this is not a condition in SQL ({said}){where}"
        if "stack overflow" in said or "too large (maximum depth" in said:
            return f"this is nested too deeply ({said})"
        if "binding" in said:
            return "a name that begins with ?, :, @ or $ has to be in double quotes"
        return "this takes too many instructions, or too long" if said == "interrupted" else f"SQLite says: {said}"


class _NoColumn(Exception):
    """The expression names a column that does not exist yet; the text is its name."""


@dataclass(slots=True)
class _Watch:
    """Answers to SQLite's questions before an action, and while a statement runs."""

    num_selects: int = 0
    num_looks: int = 0
    began: float = field(default_factory=time.thread_time)
    read: set[str] = field(default_factory=set)
    """Columns that are read."""
    refused: str | None = None
    """The first forbidden action that SQLite asked for, in words."""

    def allows(self, action: int, first: str | None, second: str | None, *_: str | None) -> int:
        """Allow the one SELECT of this module, the columns of its table, and the listed functions; deny the rest."""
        refused: str | None = "anything but a condition"
        if action == sqlite3.SQLITE_SELECT:
            self.num_selects += 1
            refused = "a SELECT inside it" if self.num_selects > 1 else None
        elif action == sqlite3.SQLITE_READ:
            self.read.add(str(second))
            refused = None if first == "samples" else "another table"
        elif action == sqlite3.SQLITE_FUNCTION:
            refused = None if str(second).lower() in FUNCTIONS else f"the function {second}"
        self.refused = self.refused or refused
        return sqlite3.SQLITE_OK if refused is None else sqlite3.SQLITE_DENY

    def stops(self) -> int:
        """Return 1 to stop a statement that runs for too long."""
        self.num_looks += 1
        is_late = time.thread_time() - self.began > MAX_SECONDS
        return int(is_late or self.num_looks * _INSTRUCTIONS_BETWEEN_LOOKS > MAX_INSTRUCTIONS)


class _Engine:
    """A database in memory with one table. Its columns have no type, so values are compared unchanged."""

    def __init__(self, columns: Sequence[str]) -> None:
        self.watch = _Watch()
        self._connection = sqlite3.connect(":memory:", isolation_level=None, cached_statements=0)
        for limit, most in LIMITS.items():
            self._connection.setlimit(limit, most)
        # SQLite's own functions take the product of both lengths.
        for name, function in _WITH_TEXTS.items():
            self._connection.create_function(name, 2, partial(_on_texts, function), deterministic=True)
        # Nobody can guess the name of this column. WITHOUT ROWID, because rowid may be the name of a field.
        self._place = f"place {uuid4().hex}"
        escaped = (name.replace('"', '""') for name in columns)
        declared = "".join(f', "{name}"' for name in escaped)
        table = f'CREATE TABLE samples ("{self._place}" INTEGER PRIMARY KEY{declared}) WITHOUT ROWID'
        self._connection.execute(table)
        self._insert = f"INSERT INTO samples VALUES (?{', ?' * len(columns)})"

    def places(self, rows: Sequence[Sequence[object]], condition: str) -> list[int]:
        """Return the indices of the rows for which a condition is true."""
        self._connection.execute("BEGIN")  # one transaction for all rows, not one for each
        self._connection.execute("DELETE FROM samples")
        numbered = ((place, *map(_storable, row)) for place, row in enumerate(rows))
        self._connection.executemany(self._insert, numbered)
        self._connection.execute("COMMIT")
        self.watch = _Watch()
        self._connection.set_progress_handler(self.watch.stops, _INSTRUCTIONS_BETWEEN_LOOKS)
        self._connection.set_authorizer(self.watch.allows)
        try:
            found = self._connection.execute(f'SELECT "{self._place}" FROM samples WHERE {condition}')
            return [place for (place,) in found]
        finally:
            self._connection.set_authorizer(None)
            self._connection.set_progress_handler(None, 0)

    def close(self) -> None:
        self._connection.close()


def _without_text(part: re.Match[str]) -> str:
    """Return a space for a comment, '0' for a text that is a number, and '' for another text."""
    text = "'0'" if _NUMBER.fullmatch(part[0][1:-1]) else "''"
    return text if part[0].startswith("'") else " "


def _with(row: Sequence[object], values: Mapping[int, object]) -> list[object]:
    return [values.get(place, value) for place, value in enumerate(row)]


def _as_number(value: object) -> object:
    """Return the number that a text is, or the value unchanged."""
    if not isinstance(value, str) or not _NUMBER.fullmatch(value):
        return value
    return int(value) if value.strip().lstrip("+-").isdigit() else float(value)


def _on_texts(function: Callable[[str, str], str | int], *values: object) -> str | int | None:
    return None if None in values else function(*map(_text, values))


def _text(value: object) -> str:
    """Return a value as SQLite writes it."""
    if isinstance(value, float):
        digits, exponent, power = f"{value:.15g}".partition("e")
        return f"{digits}{'' if '.' in digits else '.0'}{exponent}{power}"
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _trimmed(text: str, characters: str) -> str:
    return text[sum(1 for _ in takewhile(set(characters).__contains__, text)) :]


_WITH_TEXTS: dict[str, Callable[[str, str], str | int]] = {
    "instr": lambda text, part: text.find(part) + 1,
    "ltrim": _trimmed,
    "rtrim": lambda text, characters: _trimmed(text[::-1], characters)[::-1],
    "trim": lambda text, characters: _trimmed(_trimmed(text, characters)[::-1], characters)[::-1],
}


def _storable(value: object) -> object:
    """Return a JSON value as SQLite stores it: true and false are 1 and 0, numbers beyond 64 bits are floats."""
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "replace").decode()
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return float(value) if abs(value) < 2**1023 else str(value)
    return value
