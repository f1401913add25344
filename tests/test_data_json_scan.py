"""The scanners against the json module: same values, and offsets that give back the same bytes."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grace_store.base.errors import DataError
from grace_store.data.byte_streams import drop_bytes
from grace_store.data.dataset import Span, scan_array, scan_lines
from grace_store.data.record import digest_bytes

NASTY = st.text(alphabet=st.sampled_from('"\\{}[],: \n\r\tné€😀\x00ab1'), max_size=12)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | NASTY
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NASTY, inner, max_size=4), max_leaves=12
)


def blocks(text: bytes, size: int) -> Iterator[bytes]:
    return (text[i : i + size] for i in range(0, len(text), size))


@given(
    values=st.lists(VALUES, max_size=6),
    indent=st.sampled_from([None, 0, 2]),
    ascii_only=st.booleans(),
    size=st.integers(1, 40),
    lead=st.sampled_from(["", " \n", "\t"]),
)
def test_array_elements_are_those_of_the_json_module(values, indent, ascii_only, size, lead):
    text = (lead + json.dumps(values, indent=indent, ensure_ascii=ascii_only) + "\n ").encode()
    spans = list(scan_array(blocks(text, size), "x.json"))
    assert [json.loads(span.raw) for span in spans] == values
    assert [text[span.offset : span.offset + span.length] for span in spans] == [span.raw for span in spans]


@given(
    values=st.lists(VALUES, max_size=6),
    size=st.integers(1, 40),
    newline=st.sampled_from(["\n", "\r\n", "\n\n", "\n \t\r\n"]),
    ends=st.booleans(),
    start=st.integers(0, 5),
)
def test_lines_are_those_of_the_json_module(values, size, newline, ends, start):
    text = newline.join(json.dumps(value, ensure_ascii=False) for value in values).encode()
    text += newline.encode() if ends else b""
    spans = list(scan_lines(blocks(text, size), offset=start))
    assert [json.loads(span.raw) for span in spans] == values
    assert [text[span.offset - start :][: span.length] for span in spans] == [span.raw for span in spans]


@given(text=st.binary(max_size=60), size=st.integers(1, 20))
def test_lines_of_any_bytes_are_those_of_split(text, size):
    expected = [line.rstrip(b"\r") for line in text.split(b"\n") if line.strip()]
    assert [span.raw for span in scan_lines(blocks(text, size))] == expected


@given(text=st.text(alphabet='"\\{}[],a1 ', max_size=40), sizes=st.tuples(st.integers(1, 40), st.integers(1, 40)))
def test_what_an_array_holds_does_not_depend_on_the_blocks(text, sizes):
    def outcome(size: int) -> list[Span] | str:
        try:
            return list(scan_array(blocks(f"[{text}]".encode(), size), "x.json"))
        except DataError as error:
            return str(error)

    assert outcome(sizes[0]) == outcome(sizes[1])


def test_a_malformed_element_is_a_record_and_the_others_survive():
    text = b'[{"a":1}, {"b" 2}, , {"c":3} {"d":4}, nul, {"e":[1,{"f":"],}"}]},]'
    spans = [span.raw for span in scan_array([text], "x.json")]
    assert spans == [b'{"a":1}', b'{"b" 2}', b"", b'{"c":3} {"d":4}', b"nul", b'{"e":[1,{"f":"],}"}]}']


@pytest.mark.parametrize("text", [b"[]", b" [ \n ] ", b"[\n]"])
def test_an_empty_array_has_no_records(text):
    assert list(scan_array([text], "x.json")) == []


@pytest.mark.parametrize("text", [b"[", b'[{"a":1}', b'[{"a":"]}', b'[{"a":[1}', b"", b"  ", b'["\\'])
def test_an_array_cut_short_is_refused(text):
    with pytest.raises(DataError, match=r"x\.json: the JSON array has no end. The file stops at byte \d+"):
        list(scan_array([text], "x.json"))


@pytest.mark.parametrize(("text", "found"), [(b"[1] 2", "more text after its closing bracket, at byte 4"),
                                             (b' {"a":[1]}', "b'{' where [ should be, at byte 1")])  # fmt: skip
def test_text_that_is_not_one_array_is_refused(text, found):
    with pytest.raises(DataError, match=re.escape(found)):
        list(scan_array([text], "x.json"))


@pytest.mark.parametrize("size", [3, 7, 1000])
def test_a_record_over_the_limit_leaves_only_its_digest(size):
    large = b'{"a":"' + b"x" * 50 + b'"}'
    lines = b"1\n" + large + b"\n2"
    expected = [Span(0, 1, b"1", None), Span(2, len(large), b"", digest_bytes(large)), Span(61, 1, b"2", None)]
    assert list(scan_lines(blocks(lines, size), max_bytes=20)) == expected
    array = b"[1," + large + b",2]"
    found = list(scan_array(blocks(array, size), "x.json", max_bytes=20))
    assert [(span.length, span.raw) for span in found] == [(1, b"1"), (len(large), b""), (1, b"2")]
    assert found[1].large_digest == hashlib.sha256(large).digest()[:16]


@given(text=st.binary(max_size=30), size=st.integers(1, 8), count=st.integers(0, 10))
def test_dropped_bytes(text, size, count):
    assert b"".join(drop_bytes(blocks(text, size), count)) == text[count:]
