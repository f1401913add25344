"""Planning: every record ends as a sample or set aside with a reason, once and for all."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from grace_store.base.errors import (
    DatasetChanged,
    NotAStore,
    NothingUsable,
    ResumeMismatch,
    SettingError,
    SettingNeeded,
    StoreBusy,
)
from grace_store.base.events import Event, Note, Progressed, Warned
from grace_store.base.settings import DataSpec
from grace_store.run.extract import extract
from grace_store.run.plan import plan
from grace_store.run.status import set_aside_rows, status
from grace_store.run.verify import verify
from grace_store.store.backend import Backend, open_backend
from grace_store.store.lock import hold
from grace_store.store.opened import Store
from grace_store.store.plan_writer import check_claimable
from tests import fake_model
from tests.conversations import write_conversations
from tests.jobs import NUM_RECORDS, NUM_UNITS, NUM_USABLE, content, make_job, record, write_dataset
from tests.mortal_backend import Crash, MortalBackend

REQUEST = DataSpec(min_steps=2)


def planned(tmp_path: Path, **changes: object) -> Store:
    data = write_dataset(tmp_path / "traces.jsonl")
    return plan([data], tmp_path / "store.zarr", REQUEST, samples_per_unit=4)


def test_every_record_is_a_sample_or_set_aside(tmp_path: Path) -> None:
    store = planned(tmp_path)
    assert (store.plan.num_records, store.plan.num_samples, store.plan.num_units) == (
        NUM_RECORDS,
        NUM_USABLE,
        NUM_UNITS,
    )
    rows = [entry["row"] for entry in set_aside_rows(store, None)]
    assert sorted([*rows, *store.column("sample_row").tolist()]) == list(range(NUM_RECORDS))
    reasons = {entry["row"]: entry["reason"] for entry in set_aside_rows(store, None)}
    assert reasons == {5: "too_few_steps", 6: "duplicate_id", 7: "bad_json"}


def test_the_first_record_with_an_id_keeps_it(tmp_path: Path) -> None:
    store = planned(tmp_path)
    assert store.find("case-0") == 0
    assert store.column("sample_row")[0] == 0


def test_planning_again_changes_nothing(tmp_path: Path) -> None:
    planned(tmp_path)
    before = content(tmp_path / "store.zarr")
    plan([tmp_path / "traces.jsonl"], tmp_path / "store.zarr")
    assert content(tmp_path / "store.zarr") == before


def test_a_plan_does_not_depend_on_where_the_store_lies(tmp_path: Path) -> None:
    planned(tmp_path)
    plan([tmp_path / "traces.jsonl"], tmp_path / "elsewhere.zarr", REQUEST, samples_per_unit=4)
    assert content(tmp_path / "store.zarr") == content(tmp_path / "elsewhere.zarr")


def test_another_number_of_files_is_refused(tmp_path: Path) -> None:
    planned(tmp_path)
    (tmp_path / "more.jsonl").write_text(json.dumps(record(99)) + "\n")
    with pytest.raises(DatasetChanged, match=r"planned from 1 file\(s\), 2 given"):
        plan([tmp_path / "traces.jsonl", tmp_path / "more.jsonl"], tmp_path / "store.zarr")


def test_other_settings_are_refused(tmp_path: Path) -> None:
    planned(tmp_path)
    with pytest.raises(ResumeMismatch, match="min-steps: planned 2, now 8"):
        plan([tmp_path / "traces.jsonl"], tmp_path / "store.zarr", DataSpec(min_steps=8))


def test_a_file_without_a_usable_record_shows_one_and_leaves_nothing(tmp_path: Path) -> None:
    data = write_dataset(tmp_path / "traces.jsonl")
    with pytest.raises(NothingUsable, match=r"too_few_steps 26.*\n.*at least 9 steps.*\n.*too_few_steps.*\n.*case-0"):
        plan([data], tmp_path / "store.zarr", DataSpec(min_steps=9))
    assert not (tmp_path / "store.zarr").exists()
    planned(tmp_path)  # and the place is free for another try


def test_a_run_without_a_usable_record_discards_nothing_of_one_that_took_over(tmp_path: Path) -> None:
    data = tmp_path / "traces.jsonl"
    data.write_text("".join(json.dumps(record(number)) + "\n" for number in range(100)))
    backend = open_backend(tmp_path / "store.zarr")

    def take_over(event: Event) -> None:
        if isinstance(event, Progressed):
            backend.write("ledger/locks/plan.0-of-1.json", b'{"host": "another-machine"}')
            backend.write("samples/zarr.json", b"theirs")

    with pytest.raises(StoreBusy, match=r"was taken over by process \? on another-machine"):
        plan([data], backend.location, DataSpec(min_steps=9), listener=take_over)
    assert backend.read("samples/zarr.json") == b"theirs"


def test_steps_that_cannot_be_are_refused_before_reading(tmp_path: Path) -> None:
    data = write_dataset(tmp_path / "traces.jsonl")
    with pytest.raises(SettingError, match="min"):
        plan([data], tmp_path / "store.zarr", DataSpec(min_steps=9, max_steps=3))


def test_a_folder_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "store.zarr").mkdir()
    (tmp_path / "store.zarr" / "thesis.txt").write_text("years of work")
    with pytest.raises(NotAStore, match=r"not empty and not a grace-store store \(it holds thesis.txt\)"):
        planned(tmp_path)
    assert (tmp_path / "store.zarr" / "thesis.txt").read_text() == "years of work"


def test_a_folder_of_somebody_else_keeps_its_empty_folders_when_planning_fails(tmp_path: Path) -> None:
    odd = tmp_path / "odd.jsonl"
    odd.write_text('{"neither": "this nor that"}\n')
    project = tmp_path / "project"
    (project / ".git" / "refs").mkdir(parents=True)
    with pytest.raises(NotAStore, match="not empty and not a grace-store store"):
        plan([odd], project)
    assert [path.name for path in sorted(project.rglob("*"))] == [".git", "refs"]


def test_a_plan_that_another_process_finishes_meanwhile_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_for_strangers = check_claimable

    def after_the_other(backend: Backend) -> None:
        monkeypatch.setattr("grace_store.run.plan.check_claimable", looked_for_strangers)
        planned(tmp_path)
        looked_for_strangers(backend)

    monkeypatch.setattr("grace_store.run.plan.check_claimable", after_the_other)
    assert planned(tmp_path).plan.num_samples == NUM_USABLE


def test_progress_is_told(tmp_path: Path) -> None:
    data = tmp_path / "traces.jsonl"
    data.write_text("".join(json.dumps(record(i)) + "\n" for i in range(3000)))
    events: list[Event] = []
    plan([data], tmp_path / "store.zarr", REQUEST, listener=events.append)
    told = [event for event in events if isinstance(event, Progressed)]
    assert told[-1] == Progressed("Planning: 3000 records read.", data.stat().st_size, data.stat().st_size)


def test_status_of_a_plan_without_signals(tmp_path: Path) -> None:
    counts = status(planned(tmp_path))
    assert (counts.num_planned, counts.num_done, counts.num_set_aside) == (NUM_USABLE, 0, 3)
    assert not counts.is_complete


# ---------------------------------------------------------------- planning anew


def fresh(tmp_path: Path, name: str, **wishes: Any) -> dict[str, str]:
    """Return the content of a store that was planned with these settings in the first place."""
    plan([tmp_path / "traces.jsonl"], tmp_path / name, DataSpec(**wishes), samples_per_unit=4)
    return content(tmp_path / name)


def anew(tmp_path: Path, **wishes: Any) -> Store:
    data = tmp_path / "traces.jsonl"
    return plan([data], tmp_path / "store.zarr", DataSpec(**wishes), samples_per_unit=4, anew=True)


def test_while_nothing_is_extracted_other_settings_replace_the_plan(tmp_path: Path) -> None:
    planned(tmp_path)
    events: list[Event] = []
    request = DataSpec(min_steps=4)
    again = plan([tmp_path / "traces.jsonl"], tmp_path / "store.zarr", request, anew=True, listener=events.append)
    told = next(event.text for event in events if isinstance(event, Note))
    changes = "min-steps 2 became 4; unit-samples 4 became 16; 12 samples instead of 24"
    assert told == f"Planned again, because nothing was extracted yet: {changes}."
    assert again.plan.num_samples == 12
    anew(tmp_path, max_steps=4)  # what is not said stays as it was planned
    assert content(tmp_path / "store.zarr") == fresh(tmp_path, "fresh.zarr", min_steps=4, max_steps=4)
    assert list(verify(Store.open(tmp_path / "store.zarr"), deep=True)) == []


def test_a_format_that_is_said_leaves_nothing_of_a_mapping(tmp_path: Path) -> None:
    planned(tmp_path)
    mapping = {"prompt": "prompt", "steps": "steps", "answer": "answer"}
    assert anew(tmp_path, map=mapping).plan.spec.format == "mapped"
    assert anew(tmp_path, min_steps=3).plan.spec.map == mapping
    assert anew(tmp_path, format="explicit").plan.spec == DataSpec(format="explicit", min_steps=3)


def test_other_data_replaces_the_plan_and_its_settings(tmp_path: Path) -> None:
    planned(tmp_path)
    other = tmp_path / "other.jsonl"
    other.write_text("".join(json.dumps(record(i, num_steps=9)) + "\n" for i in range(5)))
    again = plan([other], tmp_path / "store.zarr", anew=True)
    assert (again.plan.num_samples, again.plan.spec.min_steps) == (5, 8)


def test_settings_that_keep_nothing_leave_the_old_plan(tmp_path: Path) -> None:
    planned(tmp_path)
    before = content(tmp_path / "store.zarr")
    with pytest.raises(NothingUsable, match="`--min-steps 2` would keep 93 %"):
        anew(tmp_path, min_steps=9)
    assert content(tmp_path / "store.zarr") == before


def test_a_plan_with_a_signal_stays(tmp_path: Path) -> None:
    store = extract(make_job(tmp_path)).store
    before = content(store.location)
    with pytest.raises(ResumeMismatch, match=r"min-steps: planned 2, now 4(?s:.)*new store.$"):
        anew(tmp_path, min_steps=4)
    store.backend.delete("signals/base/zarr.json")  # damaged, and still a night of work
    with pytest.raises(ResumeMismatch, match="min-steps: planned 2, now 4"):
        anew(tmp_path, min_steps=4)
    assert content(store.location) == {key: value for key, value in before.items() if key != "signals/base/zarr.json"}


def test_a_signal_is_not_begun_in_a_plan_that_was_replaced_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_job(tmp_path)
    planned(tmp_path)
    resolve = fake_model.resolve_spec

    def meanwhile(*words: Any, **more: Any) -> Any:
        anew(tmp_path, min_steps=4)
        return resolve(*words, **more)

    monkeypatch.setattr(fake_model, "resolve_spec", meanwhile)
    with pytest.raises(ResumeMismatch, match="planned again while this run started"):
        extract(job)
    assert Store.open(job.store).signal_names == []


CRASH_STRIDE = 19
"""Staging a plan and putting it in place take hundreds of operations, and every one is a plan made twice."""


def test_killed_anywhere_while_planning_anew_then_run_again_is_as_planned_at_once(
    tmp_path: Path, mortal: type[MortalBackend], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    planned(tmp_path)
    shutil.copytree(tmp_path / "store.zarr", tmp_path / "old.zarr")
    old = content(tmp_path / "store.zarr")
    new = fresh(tmp_path, "fresh.zarr", min_steps=2, max_steps=4)
    mortal.revive()
    anew(tmp_path, max_steps=4)
    num_operations = mortal.num_operations
    assert num_operations > 100, num_operations
    seen = set()
    for crash_at in [*range(1, num_operations - 12, CRASH_STRIDE), *range(num_operations - 12, num_operations + 1)]:
        shutil.rmtree(tmp_path / "store.zarr")
        shutil.copytree(tmp_path / "old.zarr", tmp_path / "store.zarr")
        mortal.revive(crash_at)
        with pytest.raises(Crash):
            anew(tmp_path, max_steps=4)
        mortal.revive()
        left = {key: value for key, value in content(tmp_path / "store.zarr").items() if "ledger/locks" not in key}
        left = {key: value for key, value in left.items() if "ledger/tmp" not in key}
        seen.add("unfinished" if "zarr.json" not in left else "old" if left == old else "new")
        assert "zarr.json" not in left or left in (old, new), f"crash at operation {crash_at}"
        anew(tmp_path, max_steps=4)
        with hold(open_backend(tmp_path / "store.zarr"), "other"):
            pass  # whoever takes a lock next clears what a dead run left
        assert content(tmp_path / "store.zarr") == new, f"crash at operation {crash_at}"
    assert seen == {"old", "unfinished", "new"}


# ---------------------------------------------------------------- most records set aside


def warnings(data: Path, store: Path, **wishes: Any) -> list[str]:
    events: list[Event] = []
    plan([data], store, DataSpec(**wishes), listener=events.append)
    return [event.text for event in events if isinstance(event, Warned)]


def test_losing_most_records_is_said_with_the_setting_that_keeps_them(tmp_path: Path) -> None:
    data = write_dataset(tmp_path / "traces.jsonl")
    (told,) = warnings(data, tmp_path / "store.zarr", min_steps=5)
    assert told.startswith("Most records are set aside: 21 of 27 records (20 too_few_steps, 1 bad_json). ")
    assert "`--min-steps 2` would keep 93 %. Plan again with this option" in told
    assert warnings(data, tmp_path / "half.zarr", min_steps=3) == []


@pytest.mark.parametrize(("num_short", "is_asked"), [(5, False), (6, True), (10, True)])
def test_the_default_of_min_steps_must_be_chosen_if_it_loses_more_than_half(
    tmp_path: Path, num_short: int, is_asked: bool
) -> None:
    data, store = tmp_path / "traces.jsonl", tmp_path / "store.zarr"
    rows = [record(i, num_steps=3 if i < num_short else 8) for i in range(10)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    if is_asked:
        kept = f"3 keeps 10 .100 %., 4 keeps {10 - num_short} .*, 8 keeps {10 - num_short} .*Nothing was planned"
        with pytest.raises(SettingNeeded, match=kept):
            plan([data], store)
        assert not store.exists()
        assert plan([data], tmp_path / "chosen.zarr", DataSpec(min_steps=3)).plan.num_samples == 10
    else:
        assert plan([data], store).plan.num_samples == 5
    if num_short < 10:
        assert plan([data], tmp_path / "eight.zarr", DataSpec(min_steps=8)).plan.num_samples == 10 - num_short


def test_other_reasons_for_setting_records_aside_do_not_ask_for_min_steps(tmp_path: Path) -> None:
    data = tmp_path / "traces.jsonl"
    rows = [json.dumps(record(i, num_steps=3 if i < 4 else 8)) for i in range(6)]
    data.write_text("\n".join([*rows, *["{not json"] * 6]) + "\n")
    (told,) = warnings(data, tmp_path / "store.zarr")
    assert told.startswith("Most records are set aside: 10 of 12 records (6 bad_json, 4 too_few_steps). ")


def test_a_plan_that_is_refused_for_its_default_leaves_the_old_plan(tmp_path: Path) -> None:
    planned(tmp_path)
    before = content(tmp_path / "store.zarr")
    other = tmp_path / "other.jsonl"
    other.write_text(json.dumps(record(0)) + "\n")
    with pytest.raises(SettingNeeded, match="would set aside 1 of 1 record for too few steps"):
        plan([other], tmp_path / "store.zarr", anew=True)
    assert content(tmp_path / "store.zarr") == before


@pytest.mark.parametrize(
    ("output", "advice"),
    [
        ("One.\nTwo.\nIt is 4.", "`--answer last` would keep 100 % of the first 27 records."),
        ("One.\nTwo.\n\nIt is 4.", "`--answer last --splitter lines` would keep 100 % of the first 27 records."),
    ],
)
def test_another_way_to_the_answer_is_tried(tmp_path: Path, output: str, advice: str) -> None:
    rows = [{"instruction": "Add.", "output": output} for _ in range(26)]
    rows.append({"instruction": "Add.", "output": "One.\nTwo.\nAnswer: 4"})
    data = tmp_path / "traces.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (told,) = warnings(data, tmp_path / "store.zarr", min_steps=2)
    assert advice in told


# ---------------------------------------------------------------- keys that would be lost


def test_conversations_with_keys_that_would_be_lost_are_set_aside_by_the_key(tmp_path: Path) -> None:
    data = write_conversations(tmp_path / "chats.jsonl")
    store = plan([data], tmp_path / "store.zarr", REQUEST)
    assert store.plan.set_aside == {"unread_reasoning_content": 2, "unread_tools": 3}
    assert (store.plan.num_records, store.plan.num_samples) == (9, 4)
    assert status(store).set_aside == store.plan.set_aside
    details = {entry["reason"]: entry["detail"] for entry in set_aside_rows(store, None) if entry["row"] != 4}
    assert details["unread_tools"] == "'tools' is not read yet, --ignore-key tools reads the record without it"
    assert list(verify(store)) == []


def test_keys_that_are_ignored_are_part_of_the_plan(tmp_path: Path) -> None:
    data = write_conversations(tmp_path / "chats.jsonl")
    store = plan([data], tmp_path / "store.zarr", DataSpec(min_steps=2, ignore_key=("tools", "tools")))
    assert store.plan.set_aside == {"unread_reasoning_content": 3}
    assert store.plan.spec.model_dump(mode="json")["ignore_key"] == ["tools"]
    with pytest.raises(ResumeMismatch, match="ignore-key: planned tools, now loss tools"):
        plan([data], tmp_path / "store.zarr", DataSpec(ignore_key=("tools", "loss")))
    both = DataSpec(ignore_key=("tools", "reasoning_content"))
    assert plan([data], tmp_path / "store.zarr", both, anew=True).plan.num_samples == 9
    assert plan([data], tmp_path / "store.zarr").plan.num_samples == 9
    same = DataSpec(ignore_key=("reasoning_content", "tools"))
    assert plan([data], tmp_path / "store.zarr", same).plan.num_samples == 9


def test_what_ignoring_keys_would_keep_is_tried_and_said_with_its_price(tmp_path: Path) -> None:
    data = write_conversations(tmp_path / "chats.jsonl")
    (told,) = warnings(data, tmp_path / "store.zarr", min_steps=2)
    options = "`--ignore-key reasoning_content --ignore-key tools` would keep 100 % of the first 9 records"
    assert f"{options}, without their reasoning_content, tools. If you can do without these keys, plan again" in told
    turns = [{"role": "user", "content": "Why?"}, {"role": "tool", "content": "42"}]
    called = {"messages": [*turns, {"role": "assistant", "content": "So.\nAnswer: 42", "tool_calls": [{"id": "a"}]}]}
    (tmp_path / "tools.jsonl").write_text(json.dumps(called) + "\n")
    with pytest.raises(
        NothingUsable, match=r"these keys yet: tool_calls\. Without these keys, most records are not traces"
    ):
        plan([tmp_path / "tools.jsonl"], tmp_path / "tools.zarr")
