"""Notes of every kind: written and read again as they are, and with any field spoilt a sentence."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest

from grace_store.base.documents import Document, parse_document
from grace_store.base.errors import DataError
from grace_store.choose.selection import Selection
from grace_store.scoring.notes import ScoresNote
from grace_store.values.methods.method import InfluenceSpec, ScoreSpec
from tests.example_notes import EXAMPLES, INFLUENCE, SCORES, SUBSET

WRONG = [None, "text", 7, -1, 1.5, True, [], [None], {}, {"a": 1}, 10**30, "\0"]


def read(note: dict[str, Any], like: Document) -> Document:
    return parse_document(json.dumps(note).encode(), type(like), "it")


def places(value: Any, here: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield where every field, and the first entry of every list, is."""
    keys = list(value) if isinstance(value, dict) else range(min(len(value), 1)) if isinstance(value, list) else ()
    for key in keys:
        yield (*here, key)
        yield from places(value[key], (*here, key))


def spoilt(note: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a note with one field less, or with one that is something else."""
    for place in places(note):
        for wrong in (..., *WRONG):
            changed = copy.deepcopy(note)
            holder: Any = changed
            for key in place[:-1]:
                holder = holder[key]
            if wrong is ...:
                del holder[place[-1]]
            else:
                holder[place[-1]] = wrong
            yield changed


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_note_is_read_as_it_was_written(name):
    note = EXAMPLES[name]
    again = read(note.to_json(), note)
    assert type(again) is type(note)
    assert again.to_json() == note.to_json()


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_spoilt_note_is_read_or_refused_with_a_sentence(name):
    note, num_refused = EXAMPLES[name], 0
    for changed in spoilt(note.to_json()):
        try:
            found = read(changed, note)
        except DataError as error:
            num_refused += 1
            told = str(error)
        else:
            told = "it."
            assert read(found.to_json(), note).to_json() == found.to_json()
        assert told.startswith("it")
        assert told.endswith(".")
        assert "\n" not in told
    assert num_refused > len(list(places(note.to_json())))  # more than one of the changes of each field


@pytest.mark.parametrize(
    "spec", [ScoreSpec(alpha=0.25), ScoreSpec(measure=("loss:highest",)), InfluenceSpec(method="less")]
)
def test_the_settings_in_a_note_are_those_of_their_method(spec):
    changes: dict[str, Any] = {"spec": spec}
    note = (INFLUENCE if isinstance(spec, InfluenceSpec) else SCORES).model_copy(update=changes)
    again = read(note.to_json(), note)
    assert isinstance(again, ScoresNote)
    assert again.spec == spec
    assert type(again.spec) is type(spec)
    assert again.spec.title == spec.title


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"spec": {"method": "best"}}, "unknown method 'best': use one of less"),
        ({"spec": {"method": "measures", "measure": ["tokens"], "seed": 3}}, "tokens:highest does not use --seed"),
        ({"spec": {"method": "measures", "alpha": 2}}, "alpha 2 is not between 0"),
        ({"signals": {}}, "signals"),
        ({"signals": {"base": {"sha256": "1", "num_units": 1, "weight": 0}}}, r"signals\.base\.weight 0"),
        ({"store": "a\0b"}, "not a path or an address that can be opened"),
    ],
)
def test_scores_that_cannot_be_are_refused(changes, words):
    with pytest.raises(DataError, match=words):
        read(SCORES.to_json() | changes, SCORES)


def test_a_subset_knows_whether_values_alone_decided():
    assert Selection(ratio="0.2").is_by_value
    assert SUBSET.spec.is_by_value
    for more in ({"by": "num_steps"}, {"control": ("num_steps",)}, {"per_group": "1"}):
        assert not Selection(ratio="0.2", **more).is_by_value
