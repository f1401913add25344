"""Options that are made from the library's models, and what of them was given."""

from __future__ import annotations

import json

import click
import pytest
from click.testing import CliRunner, Result
from pydantic import BaseModel, Field

from grace_store.base.settings import Storage
from grace_store.cli.options import choice, given, said, setting, wish


class Model(BaseModel):
    rank: int = Field(default=8, ge=1)
    rate: float = 1e-4
    seconds: float = 2.5
    storage: Storage = "int8"
    limit: int | None = Field(default=None, ge=1)
    deep: bool = False


def run(*words: str) -> Result:
    @click.command()
    @click.argument("store", required=False)
    @wish(Model, "--rank", "Rank of it.")
    @wish(Model, "--rate", "Rate of it.")
    @wish(Model, "--storage", "Storage of it.")
    @wish(Model, "--limit", "Limit of it.", default="no limit")
    @wish(Model, "--deep", "Depth of it.")
    @setting(Model, "--seconds", "Seconds that it takes.")
    def command(**values: object) -> None:
        click.echo(json.dumps([said(values), given(but=("rate",))]))

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
    ):
        assert text in shown
    assert "float32|float16|int8|int4" in shown
    assert json.loads(run().stdout) == [{"seconds": 2.5}, []]


def test_what_was_given_is_told_from_defaults():
    found, names = json.loads(run("S", "--rank", "8", "--rate", "2", "--deep").stdout)
    assert found == {"store": "S", "rank": 8, "rate": 2.0, "deep": True, "seconds": 2.5}
    assert names == ["STORE", "--rank", "--deep"]


@pytest.mark.parametrize("words", [("--rank", "0"), ("--limit", "0"), ("--storage", "int2"), ("--rank", "some")])
def test_a_value_that_the_field_would_not_take_is_a_usage_error(words):
    assert run(*words).exit_code == 2


def test_choices_are_those_of_the_library():
    assert tuple(choice(Storage).choices) == ("float32", "float16", "int8", "int4")
