"""Blocks of Grams and token counts: the same as sample by sample, whatever units and blocks there are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from grace_store.base.errors import SettingError, Unfinished
from grace_store.base.settings import Storage
from grace_store.pool import walk
from grace_store.pool.walk import SignalReader
from grace_store.store.opened import Store
from tests.scored_stores import known_store
from tests.stores import NUM_SAMPLES, SIGNAL, STORAGES, TOO_LONG, add_signal, finished_store, write_plan


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("at_once", [4, 8, 16384])
def test_blocks_say_the_same_as_samples(
    tmp_path: Path, storage: Storage, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(walk, "SAMPLES_PER_CHUNK", at_once)
    view = finished_store(tmp_path, storage).signal(SIGNAL)
    reader = SignalReader(view.store, (SIGNAL,), reads=("gram", "loss"))
    seen: list[int] = []
    for block in reader.map(lambda block: block, 2):
        (grams,) = block.signals
        seen += grams.sample.tolist()
        assert reader.ids(block).tolist() == [f"sample-{i}" for i in block.sample]
        entry = token = 0
        for sample, steps, total in zip(grams.sample, grams.num_steps, block.num_tokens, strict=True):
            m = int(steps) + 1
            triangle = view.gram(sample)[np.tril_indices(m)]
            np.testing.assert_array_equal(grams.gram[entry : entry + m * (m + 1) // 2], triangle)
            tokens = view.segments("segment_num_tokens", sample)
            np.testing.assert_array_equal(grams.num_tokens[token : token + m], tokens)
            np.testing.assert_array_equal(
                grams.statistic["loss"][token : token + m], view.segments("segment_loss", sample)
            )
            assert total == tokens.sum()
            entry, token = entry + m * (m + 1) // 2, token + m
        assert (entry, token, token) == (len(grams.gram), len(grams.num_tokens), len(grams.statistic["loss"]))
    assert seen == [i for i in range(NUM_SAMPLES) if i != TOO_LONG]


def test_signals_side_by_side_say_where_their_samples_stand(tmp_path: Path) -> None:
    known = known_store(tmp_path, ("one", "two"), set_aside={"one": [2], "two": [7]}, units={"two": [0, 1]})
    reader = SignalReader(known.store, ("one", "two"))
    assert reader.is_partial
    with pytest.raises(Unfinished, match=r"Signal 'two' of .* has 2 of 4 units.*--partial"):
        reader.check_complete()
    reader.check_complete(partial=True)
    block = reader.read(0)
    assert block.sample.tolist() == list(range(13))
    for name, grams, place in zip(reader.names, block.signals, block.places, strict=True):
        assert place is not None
        np.testing.assert_array_equal(block.sample[place], grams.sample)
        done = [sample for sample in known.samples[name] if sample is not None]
        np.testing.assert_array_equal(grams.num_tokens, np.concatenate([counts for _, counts in done]))
    # Of the first signal that has the sample.
    first = [one or two for one, two in zip(known.samples["one"], known.samples["two"], strict=True)]
    np.testing.assert_array_equal(block.segment_tokens, np.concatenate([counts for _, counts in first]))


def test_a_signal_without_steps_is_refused(tmp_path: Path) -> None:
    write_plan(tmp_path / "s", [1, 2], 2)
    add_signal(Store.open(tmp_path / "s"), "int8", 4, per="sample")
    with pytest.raises(SettingError, match="one vector per sample, so there are no steps to compare"):
        SignalReader(Store.open(tmp_path / "s"), (SIGNAL,))
