"""Conditions in SQL: what they keep, against Python's own answer; and what a stranger's may not do or cost."""

from __future__ import annotations

import itertools
import math
import sqlite3
from collections.abc import Callable
from contextlib import closing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grace_store.base.errors import SettingError
from grace_store.pool import filter_expression
from grace_store.pool.filter_expression import FUNCTIONS, MAX_NAMES, FilterExpression

ROWS = [
    {"id": "a", "num_steps": 3, "ok": True, "source": "math", "meta.level": 1},
    {"id": "b", "num_steps": 9, "ok": False, "source": "math", "meta.level": 2.5},
    {"id": "c", "num_steps": 9, "ok": True, "source": "code", "meta.level": None},
    {"id": "d", "num_steps": 1, "ok": None, "source": "5", "meta.level": 10**30},
]


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("ok and source in ('math', 'code')", "ac"),
        ("not ok", "b"),
        ("ok is null", "d"),
        ("ok = true or num_steps between 8 and 10", "abc"),
        ('"meta.level" >= 2', "bd"),
        ("source like 'MA%' -- a comment", "ab"),
        ("source = 5", "d"),
        ("source in (4, 5)", "d"),
        ("source in ('4', '5')", "d"),
        ("source = '5'", "d"),
        ("length(source) = 4 and id <> 'a'", "bc"),
        ("case when ok then num_steps > 5 else num_steps < 5 end", "cd"),
        ("[source] = 'code' or `source` = '5'", "cd"),
        ("SOURCE = 'code'", "c"),
    ],
)
def test_a_condition_keeps_what_it_says(text: str, ids: str) -> None:
    rows = [{**row, "SOURCE": row["source"]} for row in ROWS]
    expression = FilterExpression(text, ["id", "num_steps"])
    found = expression.keeps([[row[name] for name in (*expression.known, *expression.names)] for row in rows])
    assert "".join(ROWS[place]["id"] for place in found) == ids


LEVELS: list[object] = [1, "1", "3", " 4.5 ", "1e2", "-7", None, True, 10]


@pytest.mark.parametrize(
    ("text", "is_met"),
    [
        ("level >= 3", lambda level: level >= 3),
        ("level<3", lambda level: level < 3),
        ("3 <= level", lambda level: level >= 3),
        ("3.5 > level", lambda level: level < 3.5),
        ("level between 2 and 5", lambda level: 2 <= level <= 5),
        ("level not between 2 and 5", lambda level: not 2 <= level <= 5),
        ("not (level > 3)", lambda level: not level > 3),
        ('"level" > -8 and level <> 3', lambda level: level > -8 and level != 3),
        ("[level] > 1 or level = 1", lambda level: level >= 1),
        ("coalesce(level, 0) > num_steps", lambda level: level > 2),
        ("level in (3, 10)", lambda level: level in (3, 10)),
        ("((level)) > 3", lambda level: level > 3),
        ("level > /* three */ 3", lambda level: level > 3),
        ("level > 1 and level <> 'hard' and 'x' <> level", lambda level: level > 1),
        ("level between 2 and 5 and '4' = '4'", lambda level: 2 <= level <= 5),
    ],
)
def test_a_text_that_is_a_number_is_compared_as_one(text: str, is_met: Callable[[float], bool]) -> None:
    wanted = [place for place, level in enumerate(LEVELS) if level is not None and is_met(float(level))]  # type: ignore[arg-type]
    expression = FilterExpression(text, ["id", "num_steps"])
    rows = [[2, level] if expression.known else [level] for level in LEVELS]
    assert expression.keeps(rows) == wanted
    expression.check_texts()


@pytest.mark.parametrize("text", ["level >= 3", "level < 3", "5 > level", "not level <= 3", "ifnull(level, 1) > 3"])
def test_a_text_of_very_many_digits_is_no_number(text: str) -> None:
    expression = FilterExpression(text)
    expression.keeps([["9" * 300], ["9" * 6000]])
    with pytest.raises(SettingError, match="is not a number in 1 sample, such as '9999"):
        expression.check_texts()


@pytest.mark.parametrize("text", ["level >= 3", "level < 3", "5 > level", "not level <= 3", "ifnull(level, 1) > 3"])
def test_a_text_that_is_no_number_is_refused_where_numbers_are_compared(text: str) -> None:
    expression = FilterExpression(text)
    expression.keeps([["4"], ["x"], [2]])
    expression.keeps([["hard\n"], [""]])
    with pytest.raises(SettingError, match="but level is a text that is not a number in 3 samples, such as 'x'"):
        expression.check_texts()


@pytest.mark.parametrize(
    "text",
    ["level < 4 or level > 10", "level not between 3 and 5", "level < -10 or level >= -4", "((level)) > /* 3 */ 3"],
)
def test_a_text_that_is_kept_only_because_it_comes_after_all_numbers_is_refused(text: str) -> None:
    expression = FilterExpression(text)
    expression.keeps([["4"], ["x"], [2]])
    with pytest.raises(SettingError, match="but level is a text that is not a number in 1 sample, such as 'x'"):
        expression.check_texts()


@pytest.mark.parametrize(
    "text",
    [
        "level = 3 or level = '5'",
        "level in (3, '5')",
        "level in ('5', 3)",
        "level <> 3 and '5' <> level",
        "level > 3 and level > ''",
        "level between 3 and '5'",
        "level = 3 or level like '00%'",
        "level = 3 or cast(level as text) = '05'",
    ],
)
def test_a_field_is_not_compared_with_numbers_and_texts_at_once(text: str) -> None:
    with pytest.raises(SettingError, match=r"compares level with a number and with a text\. .* cast\(level as real\)"):
        FilterExpression(text)


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("cast(level as real) = 3 or level = '5'", [0, 1, 2]),
        ("level = 3 or level = 'hard'", [0, 1, 4]),
        ("length(level) = 3", [5]),
        ("length (level) = 3 and level <> 'x'", [5]),
        ("level between 4 and 6", [2, 3]),
    ],
)
def test_texts_and_numbers_are_kept_as_the_condition_says(text: str, kept: list[int]) -> None:
    expression = FilterExpression(text)
    assert expression.keeps([[level] for level in (3, "3", "5", 5, "hard", "007")]) == kept
    expression.check_texts()


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("level > 'm'", [1]),  # texts are compared with a text
        ("typeof(level) <> 'text' and level >= 2", [2]),
        ("cast(level as real) >= 2", [0, 2]),
        (
            "source = 'b' and level >= 2",
            [0, 2],
        ),  # the source alone decides about x
        ("length(level) >= 1 and level = 4", [0]),
        ("level like '4%'", [0]),
    ],
)
def test_texts_whose_order_does_not_matter_are_no_fault(text: str, kept: list[int]) -> None:
    rows = [{"level": "4", "source": "b"}, {"level": "x", "source": "a"}, {"level": 2, "source": "b"}]
    expression = FilterExpression(text)
    assert expression.keeps([[row[name] for name in expression.names] for row in rows]) == kept
    expression.check_texts()


def test_a_name_may_have_a_percent_sign() -> None:
    assert FilterExpression('"50%s" > 3').keeps([["4"], ["10"], [2]]) == [0, 1]


def test_names_are_those_that_the_condition_reads() -> None:
    text = """ok and "a""b" = 'not.a.name "nor this"' /* "nor" */ and [c d] and rowid and "$.id" -- "nor" """
    assert FilterExpression(text, ["id"]).known == []
    assert FilterExpression("row > 3 and x", ["id", "row"]).known == ["row"]
    assert FilterExpression(text, ["id"]).names == ['a"b', "$.id", "ok", "c d", "rowid"]


@given(
    st.lists(
        st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=True), st.text()), min_size=1, max_size=6
    )
)
@settings(max_examples=60, deadline=None)
def test_every_value_that_json_has_can_be_asked_for(values: list[object]) -> None:
    rows = [[value] for value in values]
    nothing = [place for place, value in enumerate(values) if value is None or value != value]
    assert FilterExpression("x is null").keeps(rows) == nothing
    texts = [place for place, value in enumerate(values) if isinstance(value, str)]
    assert FilterExpression("typeof(x) = 'text'").keeps(rows) == texts
    large = [p for p, v in enumerate(values) if isinstance(v, bool | int | float) and v > 0.5]
    assert FilterExpression("typeof(x) <> 'text' and x > 0.5").keeps(rows) == large


def test_numbers_and_texts_beyond_what_sqlite_holds_are_still_values() -> None:
    rows = [[10**400], [math.inf], ["\ud800 broken"], [-(2**70)]]
    assert FilterExpression("x is not null").keeps(rows) == [0, 1, 2, 3]


# ---------------------------------------------------------------- what is not a condition


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "--where is empty"),
        ("ok order id", r'near "order": syntax error\), at character 4'),
        ("ok and", "not a condition in SQL"),
        ("source = 'math", "unrecognized token"),
        ("ok /* never closed", "not a condition in SQL"),
        ("ok; ok", r"at character 3"),
        ("ok; drop table samples", "not a condition"),
        ("ok) limit (1", "not a condition"),
        ("ok)) limit ((1", "not a condition"),
        ("ok) union select id from samples where (1", "not a condition"),
        ("meta.level > 1", r'write a name with a dot in double quotes, "meta.level"'),
        ('"meta.level" > 1 and meta.level > 1', "in double quotes"),
        ("ok = ?", "has to be in double quotes"),
        ("ok = :ok", "has to be in double quotes"),
        ("nosuch(ok)", "there is no function: nosuch. There are abs"),
        ("Ok or ok", "Ok and ok. SQL ignores upper and lower case"),
        ("max(num_steps)", "misuse of aggregate"),
        ("ok = 'a\0b'", "null character|unrecognized token"),
        ("ok = '\ud800'", "characters that are not valid text"),
        (" and ".join(f"field_{i}" for i in range(MAX_NAMES + 1)), f"more than {MAX_NAMES} fields"),
    ],
)
def test_what_is_no_condition_is_said_in_a_sentence(text: str, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        FilterExpression(text, ["id", "num_steps"])


@pytest.mark.parametrize(
    ("text", "refused"),
    [
        ("random() > 0", "the function random"),
        ("length(randomblob(1000000000))", "the function randomblob"),
        ("zeroblob(1e9)", "the function zeroblob"),
        ("printf('%999999999d', 1) > ''", "the function printf"),
        ("replace(ok, 'a', 'aaaa')", "the function replace"),
        ("load_extension('evil')", "the function load_extension"),
        ("readfile('/etc/passwd')", "no function: readfile"),
        ("sqlite_version() > ''", "the function sqlite_version"),
        ("last_insert_rowid()", "the function last_insert_rowid"),
        ("current_timestamp > ''", "the function current_timestamp"),
        ("date('now') > ''", "the function date"),
        ("exists (select 1)", "a SELECT inside it"),
        ("num_steps > (select num_steps from samples)", "a SELECT inside it"),
        ("num_steps > (select avg(num_steps) from samples)", "the function avg|a SELECT inside it"),
        ("id in (select name from sqlite_master)", "a SELECT inside it|another table"),
        ("id in (select name from pragma_database_list)", "a SELECT inside it|another table|anything but"),
        ("id in sqlite_master", "a SELECT inside it|another table|anything but"),
        ("id in (values ('a'))", "a SELECT inside it"),
        (
            "(with recursive c(x) as (select 1 union all select x + 1 from c) select max(x) from c)",
            "a SELECT inside it",
        ),
        ("row_number() over ()", "the function row_number"),
        ("count(*)", "the function count"),
    ],
)
def test_nothing_but_fields_and_plain_functions_is_allowed(text: str, refused: str) -> None:
    with pytest.raises(SettingError, match=refused):
        FilterExpression(text, ["id", "num_steps"])


@pytest.mark.parametrize(
    "text", ["attach database 'x' as y", "pragma user_version", "vacuum into 'x'", "delete from x"]
)
def test_other_statements_are_no_conditions(text: str) -> None:
    with pytest.raises(SettingError, match="not a condition in SQL"):
        FilterExpression(text)


@pytest.mark.parametrize(
    "text",
    ["(" * 20_000 + "1" + ")" * 20_000, " and ".join(["a"] * 5000), "not " * 15_000 + "a", "-" * 3 + "- " * 9000],
)
def test_deep_nesting_is_refused_and_nothing_overflows(text: str) -> None:
    with pytest.raises(SettingError, match=r"nested too deeply|not a condition"):
        FilterExpression(text)


def test_a_condition_has_a_length_and_may_still_be_a_long_list() -> None:
    ids = ", ".join(f"'sample-{i}'" for i in range(3000))
    assert FilterExpression(f"id in ({ids})", ["id"]).keeps([["sample-2999"], ["sample-3000"]]) == [0]
    with pytest.raises(SettingError, match="characters, more than 65536"):
        FilterExpression(f"id in ({ids * 3})", ["id"])


def test_work_without_end_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    expression = FilterExpression(" or ".join(f"x = {i}" for i in range(400)))
    assert expression.keeps([[5]] * 300) == list(range(300))
    monkeypatch.setattr(filter_expression, "MAX_INSTRUCTIONS", 150_000)
    with pytest.raises(SettingError, match="too many instructions"):
        expression.keeps([[-1]] * 2000)


def test_work_that_takes_long_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    expression = FilterExpression("instr(x, 'b') = 0 and x not like '%b'")
    assert expression.keeps([["a"]] * 300) == list(range(300))
    monkeypatch.setattr(filter_expression, "MAX_SECONDS", 0.0)
    with pytest.raises(SettingError, match="or too long"):
        expression.keeps([["a"]] * 2000)


def test_a_search_over_long_fields_does_not_take_the_product_of_their_lengths() -> None:
    long = "a" * 4_000_000
    values = {"x": long, "y": "a" * 2_000_000 + "b", "z": "".join(map(chr, range(0x4E00, 0x9000))) + "a"}
    for text in ("instr(x, y) = 0", "trim(x, z) = ''", "ltrim(x, z) = ''", "rtrim(x, z) = ''"):
        condition = FilterExpression(text)
        assert condition.keeps([[values[name] for name in condition.names]]) == [0]


VALUES = [None, "", "a", "ab", "xabax", "é", "1", "0", ".0", 1, 10, -3, 1.0, 0.1, 1e20, 1e-7, 2**53 + 1.0, "e", "7"]


@pytest.mark.parametrize("function", ["instr", "trim", "ltrim", "rtrim"])
def test_functions_of_two_texts_are_those_of_sqlite(function: str) -> None:
    pairs = list(itertools.product(VALUES, VALUES))
    with closing(sqlite3.connect(":memory:")) as plain:
        expected = [plain.execute(f"SELECT {function}(?, ?)", pair).fetchone()[0] for pair in pairs]
    condition = FilterExpression(f"{function}(x, y) is z")
    named = [{"x": x, "y": y, "z": z} for (x, y), z in zip(pairs, expected, strict=True)]
    assert condition.keeps([[row[name] for name in condition.names] for row in named]) == list(range(len(named)))


def test_a_pattern_that_would_take_for_ever_does_not() -> None:
    expression = FilterExpression("x like '" + "%a" * 400 + "%b'")
    assert expression.keeps([["a" * 20_000]]) == []


def test_text_that_outgrows_its_fields_is_refused() -> None:
    expression = FilterExpression(" || ".join(["x"] * 10) + " <> ''")
    with pytest.raises(SettingError, match="too big"):
        expression.keeps([["a" * 4_000_000]])


def test_the_functions_that_are_allowed_are_those_that_depend_on_their_arguments_alone() -> None:
    forbidden = {"random", "randomblob", "zeroblob", "printf", "format", "date", "datetime", "julianday", "strftime"}
    forbidden |= {"load_extension", "changes", "total_changes", "last_insert_rowid", "sqlite_version", "replace", "hex"}
    assert not FUNCTIONS & forbidden
