"""Which signals are meant, by names and weights."""

from __future__ import annotations

import pytest

from grace_store.base.errors import SettingError, UnknownName
from grace_store.pool.pool import SignalWeights, resolve_signals
from tests.scored_stores import known_store


@pytest.fixture(scope="module")
def known(tmp_path_factory):
    return known_store(tmp_path_factory.mktemp("known"), ("early", "late"))


@pytest.mark.parametrize(
    ("signals", "error", "message"),
    [
        ("middle", UnknownName, r"has no signal 'middle' \(there are: early, late\)"),
        (["early", "early=2"], SettingError, "Signal 'early' is given twice"),
        (["early=0"], SettingError, "Signal 'early' has weight 0: a weight is a number above 0"),
        (["early=nan"], SettingError, "Signal 'early' has weight nan"),
        (["early=many"], UnknownName, "has no signal 'early=many'"),
        (None, UnknownName, "Choose a signal with --signal"),
    ],
)
def test_signals_without_meaning_are_refused(known, signals, error, message):
    with pytest.raises(error, match=message):
        resolve_signals(known.store, signals)


def test_a_signal_whose_name_looks_like_a_weight(tmp_path):
    known = known_store(tmp_path, ("lr=2", "base"))
    assert resolve_signals(known.store, ["lr=2", "base=3"]).weights == {"lr=2": 1.0, "base": 3.0}
    assert resolve_signals(known.store, "lr=2=4").weights == {"lr=2": 4.0}
    assert str(resolve_signals(known.store, ["lr=2", "base=3"])) == "lr=2=1,base=3"


def test_signals_may_be_given_in_any_way(known):
    for given in (["early=2", "late=6"], {"early": 2, "late": 6.0}, SignalWeights({"early": 2.0, "late": 6.0})):
        assert resolve_signals(known.store, given).weights == {"early": 2.0, "late": 6.0}
    assert resolve_signals(known.store, "late").names == ("late",)
