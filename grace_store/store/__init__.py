"""The on-disk format: the only package that knows zarr. Imports nothing of the program above it."""

from grace_store.store.backend import Backend, LocalBackend, is_url, open_backend, open_run_log, run_logs
from grace_store.store.check import Problem, Sizes, check_plan, check_signal, check_strays, listed_sizes, remedy_of_lost
from grace_store.store.copies import has_plan_copy, restore_documents
from grace_store.store.gram_reader import GramReader, SampleGrams
from grace_store.store.layout import SAMPLES, SAMPLES_PER_CHUNK, check_signal_name, unit_range
from grace_store.store.lock import Lease, Shard, clear_dead, hold, refuse_busy
from grace_store.store.opened import SampleRows, SignalView, Store, is_committed
from grace_store.store.plan_writer import PlannedSample, PlanWriter, check_claimable, plan_documents
from grace_store.store.totals import Totals
from grace_store.store.unit_writer import (
    UnitWriter,
    check_kind,
    complete_signal,
    create_signal,
    rewrite_signal_metadata,
    withdraw_units,
)

__all__ = [
    "SAMPLES",
    "SAMPLES_PER_CHUNK",
    "Backend",
    "GramReader",
    "Lease",
    "LocalBackend",
    "PlanWriter",
    "PlannedSample",
    "Problem",
    "SampleGrams",
    "SampleRows",
    "Shard",
    "SignalView",
    "Sizes",
    "Store",
    "Totals",
    "UnitWriter",
    "check_claimable",
    "check_kind",
    "check_plan",
    "check_signal",
    "check_signal_name",
    "check_strays",
    "clear_dead",
    "complete_signal",
    "create_signal",
    "has_plan_copy",
    "hold",
    "is_committed",
    "is_url",
    "listed_sizes",
    "open_backend",
    "open_run_log",
    "plan_documents",
    "refuse_busy",
    "remedy_of_lost",
    "restore_documents",
    "rewrite_signal_metadata",
    "run_logs",
    "unit_range",
    "withdraw_units",
]
