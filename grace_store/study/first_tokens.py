"""Compare the losses of the first tokens of steps with those of all other tokens of steps."""

from collections.abc import Iterable

import numpy as np

from grace_store.base.arrays import IntArray, sum_by_sample
from grace_store.base.finding import Column, Table, make_columns
from grace_store.base.text import percent
from grace_store.pool.pool import Pool, stepwise_signals
from grace_store.pool.walk import SignalReader, SignalSamples
from grace_store.store.opened import Store
from grace_store.values.gram import is_step
from grace_store.values.intervals import ratio_over_questions, sums_by_question


def compare_first_tokens(store: Store, signals: Iterable[str], row: IntArray) -> tuple[str, dict[str, Table]]:
    """Return a sentence about first tokens, and its table, for samples of some dataset rows.

    The losses are those of the first signal with steps; without such a signal, sentence and table are empty.
    """
    name = next((name for name in signals if name in stepwise_signals(store)), None)
    if name is None or not len(row):
        return "", {}
    wanted = np.zeros(store.plan.num_samples, dtype=np.bool_)
    wanted[store.positions_of(row)] = True
    reader = SignalReader(store, (name,), wanted, reads=("loss", "first_loss"))
    found = SignalSamples.joined(list(reader.map(lambda block: block.signals[0])))
    return _compared(found, Pool(store).questions(found.sample))


def _compared(found: SignalSamples, question: IntArray) -> tuple[str, dict[str, Table]]:
    of_steps = is_step(found.num_steps)
    tokens, loss, first = (
        each[of_steps].astype(np.float64)
        for each in (found.num_tokens, found.statistic["loss"], found.statistic["first_loss"])
    )
    steps = found.num_steps.astype(np.float64)
    all_loss, first_loss = (sum_by_sample(found.num_steps, each) for each in (loss * tokens, first))
    num_tokens = sum_by_sample(found.num_steps, tokens)
    if not all_loss.sum() > 0 or num_tokens.sum() == steps.sum():
        return "", {}
    first_loss, steps, all_loss, num_tokens = sums_by_question(question, (first_loss, steps, all_loss, num_tokens))
    firsts = ratio_over_questions(first_loss, steps, len(found.sample), scale="plain")
    rest = all_loss - first_loss, num_tokens - steps
    others = ratio_over_questions(*rest, len(found.sample), scale="plain")
    share = ratio_over_questions(first_loss, all_loss, len(found.sample))
    of_tokens = float(steps.sum() / num_tokens.sum())
    rows = (
        {"tokens": "first of a step", "share": of_tokens, "loss": firsts, "share_of_loss": share},
        {"tokens": "others", "share": 1 - of_tokens, "loss": others, "share_of_loss": None},
    )
    columns = make_columns(
        tokens="tokens of steps",
        share=Column(heading="share of tokens", is_share=True),
        loss="mean loss",
        share_of_loss=Column(heading="share of the loss", is_share=True),
    )
    about = "Intervals are over questions. The last column is the share of first tokens in the traces' mean loss."
    told = (
        f"The first token of a step has a mean loss of {firsts.value:.2f}, the other tokens have {others.value:.2f}: "
        f"first tokens are {percent(of_tokens)} of the tokens and make up {share.text(is_share=True)} of the loss."
    )
    return told, {"first_tokens": Table(title="First tokens of steps", columns=columns, rows=rows, about=about)}
