"""Options that are made from the library's models, and what of them was given."""

from __future__ import annotations

import json

import click
import pytest
from click.testing import CliRunner, Result
from pydantic import Field

from grace_store.base.settings import Frozen, Storage
from grace_store.cli.options import As, choice, given, only_given, options_of


class Spec(Frozen):
    rank: int = Field(default=8, ge=1)
    """Rank of it."""
    rate: float = 1e-4
    """Rate of it, which is
    described on two lines."""
    storage: Storage = "int8"
    """Storage of it."""
    limit: int | None = Field(default=None, ge=1)
    """Limit of it."""
    deep: bool = False
    """Depth of it."""
    origin: str = "here"


class Request(Frozen):
    rank: int | None = None
    rate: float | None = None
    storage: Storage | None = None
    limit: int | None = None
    deep: bool | None = None


class Speed(Frozen):
    seconds: float = 2.5
    """Seconds that it takes."""
    workers: int = 2


def run(*words: str) -> Result:
    @click.command()
    @click.argument("store", required=False)
    @options_of(Request, Spec, differing={"limit": As("--at-most", default="no limit")})
    @options_of(Speed, but=["workers"], has_defaults=True)
    def command(**values: object) -> None:
        click.echo(json.dumps([only_given(values), given(but=("rate",))]))

    return CliRunner().invoke(command, words)


def test_an_option_says_its_fields_default_and_leaves_it_to_the_library():
    shown = " ".join(run("--help").stdout.split())
    for text in (
        "[default: 8]",
        "[default: 0.0001]",
        "[default: int8]",
        "[default: no limit]",
        "[default: no-deep]",
        "[default: 2.5]",
        "Rate of it, which is described on two lines.",
    ):
        assert text in shown
    assert "float32|float16|int8|int4" in shown
    assert "--origin" not in shown
    assert "--workers" not in shown
    assert json.loads(run().stdout) == [{"seconds": 2.5}, []]


def test_what_was_given_is_told_from_defaults():
    found, names = json.loads(run("S", "--rank", "8", "--rate", "2", "--deep").stdout)
    assert found == {"store": "S", "rank": 8, "rate": 2.0, "deep": True, "seconds": 2.5}
    assert names == ["STORE", "--rank", "--deep"]


@pytest.mark.parametrize("words", [("--rank", "0"), ("--at-most", "0"), ("--storage", "int2"), ("--rank", "some")])
def test_a_value_that_the_field_would_not_take_is_a_usage_error(words):
    assert run(*words).exit_code == 2


def test_choices_are_those_of_the_library():
    assert tuple(choice(Storage).choices) == ("float32", "float16", "int8", "int4")
