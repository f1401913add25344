"""The demo dataset says what it is: right traces are right, flawed ones are flawed in the way they name."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from itertools import combinations, count
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from grace_store.example import FOLDER
from jobs.demo_traces import flaws, traces

LINES = (FOLDER / "traces.jsonl").read_text(encoding="utf-8").splitlines()
USABLE: list[dict[str, Any]] = [json.loads(line) for line in LINES[:64]]
NUMBER = r"\d+(?:\.\d+)?"


def of_quality(*names: str) -> list[Any]:
    return [pytest.param(record, id=record["id"]) for record in USABLE if record["quality"] in names]


def steps_of(record: dict[str, Any]) -> list[str]:
    return re.findall(r"^Step \d+: (.*)$", record["output"], flags=re.M)


def answer_of(record: dict[str, Any]) -> str:
    return str(record["output"].rsplit("†Answer:", 1)[1].strip().split("\n")[0])


def value_of(answer: str) -> Fraction:
    found = re.search(rf"{NUMBER}(?:/\d+)?", answer)
    assert found
    top, _, bottom = found.group().partition("/")
    return Fraction(top) / Fraction(bottom or 1)


# Truth from elsewhere: the questions are read from the shipped text and solved by counting where that can be done.


def solve_discount(price: Fraction, off: Fraction, tax: Fraction) -> Fraction:
    return price * (1 - off / 100) * (1 + tax / 100)


def solve_equation(a: Fraction, b: Fraction, c: Fraction, d: Fraction) -> Fraction:
    return next(Fraction(x) for x in range(1000) if a * x + b == c * x + d)


def solve_average(*numbers: Fraction) -> Fraction:
    return next(Fraction(x) for x in range(1000) if (sum(numbers[:-1]) + x) / 6 == numbers[-1])


def solve_work_rate(a: Fraction, b: Fraction) -> Fraction:
    return 1 / (1 / a + 1 / b)


def solve_speed(v1: Fraction, t1: Fraction, v2: Fraction, t2: Fraction) -> Fraction:
    return sum([v1] * int(t1) + [v2] * int(t2)) / (t1 + t2)


def solve_ratio(total: Fraction, a: Fraction, b: Fraction, c: Fraction) -> Fraction:
    return total * (c - a) / (a + b + c)


def solve_probability(r: Fraction, b: Fraction, g: Fraction) -> Fraction:
    pairs = list(combinations("r" * int(r) + "b" * int(b) + "g" * int(g), 2))
    return Fraction(pairs.count(("r", "r")), len(pairs))


def solve_sequence(a: Fraction, d: Fraction, n: Fraction) -> Fraction:
    return sum((a + d * k for k in range(int(n))), Fraction(0))


def solve_rectangle(a: Fraction, b: Fraction, s: Fraction) -> Fraction:
    return Fraction(sum(not (x < s and y < s) for x in range(int(a)) for y in range(int(b))))


def solve_triangle(a: Fraction, b: Fraction) -> Fraction:
    return a + b + next(c for c in count(1) if c * c >= a * a + b * b)


def solve_sector(r: Fraction, angle: Fraction, pi: Fraction) -> Fraction:
    return pi * r * r * angle / 360


def solve_chart(*bars: Fraction) -> Fraction:
    return max(bars) - sum(bars, Fraction(0)) / len(bars)


SOLVERS: dict[str, Callable[..., Fraction]] = {
    name.removeprefix("solve_").replace("_", "-"): solver
    for name, solver in list(globals().items())
    if name.startswith("solve_")
}


def solve(record: dict[str, Any]) -> Fraction:
    return SOLVERS[record["kind"]](*map(Fraction, re.findall(NUMBER, record["instruction"])))


def equations(text: str) -> list[str]:
    """Find `1 + 2 = 3` and the like; what has an unknown in it is left out."""
    runs = re.findall(rf"(?:(?:{NUMBER}|[-+×÷/=()]|\b[a-z]\b|(?<=\d)x)\s*)+", text)
    return [run.strip() for run in runs if re.search(r"\d\)?\s*=\s*\d", run) and "x" not in run]


def holds(equation: str) -> bool:
    left, right = (_value(side) for side in equation.split("="))
    return left == right


def _value(side: str) -> Fraction:
    exact = re.sub(NUMBER, lambda number: f"Fraction('{number.group()}')", side)
    return Fraction(eval(exact.replace("×", "*").replace("÷", "/"), {"Fraction": Fraction}))


def test_the_checker_sees_what_it_should() -> None:
    assert equations("So 2 + 3 = 5, and 3x + 5 = 20, so (4 + 2) ÷ 3 = 2.") == ["2 + 3 = 5", "(4 + 2) ÷ 3 = 2"]
    assert holds("12/90 = 2/15")
    assert not holds("0.1 × 3 = 0.4")


def test_regenerating_gives_the_shipped_bytes(tmp_path: Path) -> None:
    assert traces.dataset_text().encode() == (FOLDER / "traces.jsonl").read_bytes()
    traces.write_demo(tmp_path)
    assert (tmp_path / "traces.jsonl").read_bytes() == (FOLDER / "traces.jsonl").read_bytes()
    assert sorted(path.name for path in (tmp_path / "images").iterdir()) == sorted(
        path.name for path in (FOLDER / "images").iterdir()
    )


def test_another_seed_gives_other_problems() -> None:
    assert traces.dataset_text(seed=1) != traces.dataset_text()


def test_counts() -> None:
    quality = Counter(record["quality"] for record in USABLE)
    kind = Counter(record["kind"] for record in USABLE)
    assert len(LINES) == 68
    assert quality == dict.fromkeys(flaws.QUALITIES, 3) | {"clean": 32, "wrong_step": 4, "filler": 4}
    assert set(kind) == set(SOLVERS)
    assert min(kind.values()) >= 5
    assert len({record["id"] for record in USABLE}) == 64
    assert len({record["instruction"] for record in USABLE}) == 60
    assert sum(record["copy_of"] is not None for record in USABLE) == 4
    assert sum(record["image_url"] is not None for record in USABLE) == 16


@pytest.mark.parametrize("record", of_quality(*flaws.QUALITIES))
def test_form(record: dict[str, Any]) -> None:
    steps = steps_of(record)
    tokens = re.findall(r"\d|[^\W\d]+|[^\w\s]", record["output"])
    assert list(record) == ["id", "image_url", "instruction", "output", "kind", "quality", "bad_steps", "copy_of"]
    assert 8 <= len(steps) <= 12
    body = [*(f"Step {n}: {text}" for n, text in enumerate(steps, 1)), f"†Answer: {answer_of(record)}"]
    lines = record["output"].splitlines()
    assert lines[: len(body)] == body or record["quality"] == "open_think"
    assert (lines == body) == (record["quality"] not in ("open_think", "running_on"))
    assert len(tokens) < 450
    text = record["instruction"] + record["output"]
    assert not re.search(r"[@{}\[\]]|  |(?<![\d.])1 (dollars|parts|hours|points)\b", text)
    ended = steps[:-1] if record["quality"] == "cut_off" else steps
    assert all(re.match(r"[A-Z]", step) and step.endswith((".", ":", "?")) for step in ended)


@pytest.mark.parametrize("record", of_quality(*(set(flaws.QUALITIES) - {"wrong_answer"})))
def test_answer_is_right(record: dict[str, Any]) -> None:
    assert value_of(answer_of(record)) == solve(record)


@pytest.mark.parametrize("record", of_quality(*(set(flaws.QUALITIES) - {"wrong_step"})))
def test_every_equation_in_the_steps_holds(record: dict[str, Any]) -> None:
    found = [equation for step in steps_of(record) for equation in equations(step)]
    assert len(found) >= 4
    assert [equation for equation in found if not holds(equation)] == []


@pytest.mark.parametrize("record", of_quality("wrong_step"))
def test_wrong_step_is_one_wrong_step_that_nothing_builds_on(record: dict[str, Any]) -> None:
    steps = steps_of(record)
    wrong = [n for n, step in enumerate(steps) if not all(map(holds, equations(step)))]
    assert [n + 1 for n in wrong] == record["bad_steps"]
    assert 0 < wrong[0] < len(steps) - 2
    false = next(equation for equation in equations(steps[wrong[0]]) if not holds(equation))
    claimed, right = false.split("=")[1].strip(), _value(false.split("=")[0])
    later = [Fraction(number) for step in steps[wrong[0] + 1 :] for number in re.findall(NUMBER, step)]
    assert right in later, f"nothing goes on from {right} after {false}"
    assert Fraction(claimed) != right


@pytest.mark.parametrize("record", of_quality("wrong_answer"))
def test_wrong_answer_contradicts_its_last_step(record: dict[str, Any]) -> None:
    truth = solve(record)
    last = [value_of(number) for number in re.findall(rf"{NUMBER}(?:/\d+)?", steps_of(record)[-1])]
    assert truth in last
    assert value_of(answer_of(record)) != truth


def repeated(steps: list[str]) -> list[str]:
    return [step for n, step in enumerate(steps) if any(earlier in step for earlier in steps[:n])]


def bad_texts(record: dict[str, Any]) -> list[str]:
    return [[*steps_of(record), answer_of(record)][number - 1] for number in record["bad_steps"]]


@pytest.mark.parametrize("record", USABLE, ids=lambda record: record["id"])
def test_only_repetitive_and_looping_traces_repeat(record: dict[str, Any]) -> None:
    again = repeated(steps_of(record))
    repeats = record["quality"] in ("repetitive", "looping")
    assert again == (bad_texts(record) if repeats else [])
    assert len(again) >= 3 or not repeats
    assert len(set(again)) == 1 or record["quality"] != "looping"


@pytest.mark.parametrize("record", USABLE, ids=lambda record: record["id"])
def test_bad_steps_are_named_where_they_are(record: dict[str, Any]) -> None:
    last = len(steps_of(record)) + 1
    expected = {
        "clean": [], "wrong_answer": [last], "running_on": [last], "cut_off": [last - 1], "restating": [1],
        "open_think": [1],
    }  # fmt: skip
    assert record["bad_steps"] == expected.get(record["quality"], record["bad_steps"])
    assert all(1 <= number <= last for number in record["bad_steps"])


@pytest.mark.parametrize("record", of_quality("cut_off", "restating", "running_on", "open_think"))
def test_flaws_of_form_are_there(record: dict[str, Any]) -> None:
    steps, output = steps_of(record), record["output"]
    signs = {
        "cut_off": not steps[-1].endswith((".", ":")),
        "restating": record["instruction"].startswith(steps[0]),
        "running_on": "\n\nQuestion: " in output,
        "open_think": output.startswith("<think>\n") and "</think>" not in output,
    }
    assert signs[record["quality"]]


def test_copies_are_copies() -> None:
    by_id = {record["id"]: record for record in USABLE}
    pairs = [(record, by_id[record["copy_of"]]) for record in USABLE if record["copy_of"]]
    assert all(copy["instruction"] == first["instruction"] for copy, first in pairs)
    more = [len(steps_of(copy)) - len(steps_of(first)) for copy, first in pairs]
    assert sorted(more) == [0, 0, 1, 1]
    assert [copy["output"] == first["output"] for copy, first in pairs] == [each == 0 for each in more]


@pytest.mark.parametrize("record", USABLE, ids=lambda record: record["id"])
def test_only_filler_traces_hold_filler(record: dict[str, Any]) -> None:
    idle = [step for step in steps_of(record) if step in flaws.FILLERS]
    assert (len(idle) >= 3) == (record["quality"] == "filler")
    assert idle == (bad_texts(record) if record["quality"] == "filler" else [])


def test_filler_has_nothing_to_do_with_any_question() -> None:
    assert not [text for text in flaws.FILLERS if re.search(r"\d|=", text)]


def test_rambling_traces_use_far_more_words_a_step() -> None:
    words = {
        record["id"]: len(record["output"].split()) / len(steps_of(record))
        for record in USABLE
        if record["quality"] in ("clean", "rambling")
    }
    clean = [words[param.id] for param in of_quality("clean")]
    rambling = [words[param.id] for param in of_quality("rambling")]
    assert min(rambling) > max(clean)
    assert sum(rambling) / len(rambling) > 1.4 * sum(clean) / len(clean)


def test_the_last_four_lines_are_unusable_each_in_its_way() -> None:
    no_answer, few_steps, same_id = map(json.loads, LINES[64:67])
    assert "†Answer:" not in no_answer["output"]
    assert len(steps_of(no_answer)) >= 8
    assert "†Answer:" in few_steps["output"]
    assert 1 <= len(steps_of(few_steps)) < 8
    assert len(steps_of(same_id)) >= 8
    assert "†Answer:" in same_id["output"]
    assert [record["id"] for record in USABLE].count(same_id["id"]) == 1
    assert len({no_answer["id"], few_steps["id"]} | {record["id"] for record in USABLE}) == 66
    with pytest.raises(json.JSONDecodeError, match="Unterminated string"):
        json.loads(LINES[67])


def test_figures_are_there_and_small() -> None:
    named = {record["image_url"] for record in USABLE if record["image_url"]}
    assert named == {f"images/{path.name}" for path in (FOLDER / "images").iterdir()}
    for name in sorted(named):
        path = FOLDER / name
        assert path.stat().st_size <= 3000
        with Image.open(path) as figure:
            figure.load()
            assert figure.mode == "P"
            assert figure.format == "PNG"
            assert all(200 <= side <= 336 for side in figure.size)
