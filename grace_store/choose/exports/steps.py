"""The chosen records with the scores of their steps, and the span of each step in the response."""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from grace_store.base.errors import DataError
from grace_store.choose.exports.export_kind import ChosenRecords, Export, write_records


def _with_scores(chosen: ChosenRecords) -> Iterator[bytes]:
    scores = chosen.subset.scores.with_steps()
    if not scores.has_step_scores:
        raise DataError(f"Scores by {scores.note.spec.title} have no step scores to join to records.")
    flat = {name: scores.flat(name) for name in (*scores.step_columns, "step_num_tokens")}
    offsets, value = scores.offsets, scores.value
    for index, (raw, sample) in zip(chosen.subset.chosen.tolist(), chosen.samples(), strict=True):
        if b'"grace_store"' in raw and "grace_store" in json.loads(raw):
            raise DataError(
                f"Sample {sample.sample_id!r} already has a field grace_store. Export from the original data."
            )
        mine = slice(offsets[index], offsets[index + 1])
        spans = [[start, stop] for start, stop in zip(sample.bounds, sample.bounds[1:], strict=False)]
        added: dict[str, Any] = {"sample_id": sample.sample_id, "value": _number(value[index])}
        added |= {name: [_number(number) for number in flat[name][mine]] for name in scores.step_columns}
        added |= {"step_num_tokens": flat["step_num_tokens"][mine].tolist()}
        yield with_step_scores(raw, added | {"step_span": spans[:-1], "answer_span": spans[-1]})


def with_step_scores(raw: bytes, added: dict[str, Any]) -> bytes:
    """Return a record, unchanged, with one more field, "grace_store", at its end.

    >>> with_step_scores(b'{"id": 1}', {"value": 0.5})
    b'{"id": 1, "grace_store": {"value": 0.5}}'
    """
    head = raw.rstrip()[:-1].rstrip()
    comma = b"" if head == b"{" else b", "
    return head + comma + b'"grace_store": ' + json.dumps(added, ensure_ascii=False).encode() + b"}"


def _number(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


EXPORT = Export(write=lambda chosen, exported: write_records(exported.out, _with_scores(chosen)))
