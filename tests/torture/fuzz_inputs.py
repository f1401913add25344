"""Hostile bytes from good ones: seeded mutations of real files, blind or aware of JSON."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

MAX_BYTES = 1 << 18
"""Larger inputs are cut: the size of things has tests of its own."""

TOKENS = [
    b"{",
    b"}",
    b"[",
    b"]",
    b'"',
    b"\\",
    b"\\u",
    b"\\ud800",
    b"\\udc00",
    b",",
    b":",
    b"null",
    b"true",
    b"NaN",
    b"Infinity",
    b"1e999",
    b"-",
    b"0",
    b"9" * 5000,
    b"\n",
    b"\r\n",
    b"\r",
    b"\0",
    b" ",
    b"\t",
    b"\xef\xbb\xbf",
    b"\xff",
    b"\xed\xa0\x80",
    b"\xe2\x80\xae",
    b"\xe2\x80\xa8",
    b"\xcc\x81" * 50,
    b"../",
    b"..\\",
    b"/etc/passwd",
    b"C:\\",
    b"file:///",
    b"data:image/png;base64,",
    b"<image>",
    b"<think>",
    b"</think>",
    b"<REASONING>",
    b"<CONCLUSION>",
    b"\\\\boxed{",
    b"#### ",
    b"Step 1:",
    b"\xe2\x80\xa0Answer:",
    b"\\n\\n",
    b"PAR1",
    b"ARROW1",
    b"\x1f\x8b",
    b"\x28\xb5\x2f\xfd",
    b"[" * 2000,
    b'{"a":' * 200,
    b"marker:",
    b"(a+)+",
    b"=",
    b"[[grid]]",
]
"""What parsers look for, written by hand."""

NUMBERS = (0, 1, 0x7F, 0x80, 0xFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0x7FFFFFFFFFFFFFFF, 0xFFFFFFFFFFFFFFFF)


def hostile_values() -> list[Any]:
    """Return JSON values that code forgets about."""
    deep: Any = "end"
    for _ in range(200):
        deep = {"path": deep}
    return [
        None,
        True,
        False,
        0,
        -1,
        1 << 31,
        1 << 63,
        10**400,
        1.5,
        1e308,
        "",
        " ",
        "\n",
        "a\nb",
        "\0",
        "\ud800",
        "\u202eabc",
        "e\u0301" * 100,
        "../../../etc/passwd",
        "/etc/passwd",
        "C:\\x",
        "file:///etc/passwd",
        "data:image/png;base64,AAAA",
        "http://x/y.png",
        "<image>",
        "x" * 10_000,
        "Step 1: a\nStep 2: b\n\u2020Answer: c",
        "\\boxed{" * 50,
        "#### 4",
        [],
        {},
        [[]],
        [None],
        [""],
        ["a", 1],
        {"": ""},
        {"bytes_base64": "?"},
        {"path": None, "bytes": "AAAA"},
        deep,
        [[[[]]]],
        {"role": "user", "content": [{"type": "image"}]},
    ]


def mutate(rng: random.Random, seeds: Sequence[bytes]) -> bytes:
    """Return a seed changed in a few places."""
    data = rng.choice(seeds)
    if b"{" in data[:200] and rng.random() < 0.6:
        data = _mutate_json(rng, data)
    for _ in range(rng.choice((0, 1, 1, 2, 3, 8))):
        data = _mutate_bytes(rng, data, seeds)
    return data[:MAX_BYTES]


def _mutate_bytes(rng: random.Random, data: bytes, seeds: Sequence[bytes]) -> bytes:
    start = rng.randrange(len(data) + 1)
    stop = min(len(data), start + rng.choice((1, 2, 4, 16, 256, 4096)))
    match rng.randrange(9):
        case 0 if data:
            flipped = bytearray(data)
            flipped[start - 1] ^= 1 << rng.randrange(8)
            return bytes(flipped)
        case 1:
            return data[:start] + data[stop:]
        case 2:
            return data[:start] + rng.choice(TOKENS) + data[start:]
        case 3:
            number, size = rng.choice(NUMBERS), rng.choice((1, 2, 4, 8))
            return (
                data[:start]
                + (number % (1 << 8 * size)).to_bytes(size, rng.choice(("little", "big")))
                + data[start + size :]
            )
        case 4:
            return data[:start] + data[start:stop] * rng.choice((2, 3, 100)) + data[stop:]
        case 5:
            return data[:start]
        case 6:
            other = rng.choice(seeds)
            return data[:start] + other[rng.randrange(len(other) + 1) :]
        case 7:
            return data[:start] + rng.randbytes(stop - start) + data[stop:]
        case _:
            return data[:start] + data[start:stop][::-1] + data[stop:]


def _mutate_json(rng: random.Random, data: bytes) -> bytes:
    """Return JSON text with some of its values put in the place of others, or of hostile ones."""
    lines = data.split(b"\n")
    documents = [at for at, line in enumerate(lines) if line[:1] in (b"{", b"[") and line[-1:] in (b"}", b"]")]
    at = rng.choice(documents) if documents else 0
    lines = lines if documents else [data]
    try:
        value = json.loads(lines[at])
    except ValueError:
        return data
    for _ in range(rng.choice((1, 1, 2, 5))):
        _replace_somewhere(rng, value)
    lines[at] = json.dumps(value).encode()
    return b"\n".join(lines)


def _replace_somewhere(rng: random.Random, value: Any) -> None:
    while isinstance(value, dict | list) and value:
        keys = list(value) if isinstance(value, dict) else range(len(value))
        key = rng.choice(list(keys))
        inside = value[key]
        if isinstance(inside, dict | list) and inside and rng.random() < 0.8:
            value = inside
            continue
        match rng.randrange(4):
            case 0:
                del value[key]
            case 1 if isinstance(value, dict):
                value[rng.choice(("id", "images", "image", "steps", "messages", "x", ""))] = value.pop(key)
            case 2 if isinstance(value, list):
                value += [inside] * rng.choice((1, 2, 600))
            case _:
                value[key] = rng.choice(hostile_values())
        return
