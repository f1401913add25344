"""Write a golden store: ``python -m tests.golden.make_store FOLDER``, by the code of the version to keep.

One proxy signal for each storage, from the fake model, zipped; what scoring says of each is written beside it. Every
other sample is of one question, and the plan brings them together. One more record has tools, without which it is read,
and another has videos, for which it is set aside.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from grace_store.base.settings import DataSpec, ExtractSpec
from grace_store.run.engines.engine import ExtractJob
from grace_store.run.extract import extract
from grace_store.scoring.score import ScoreRequest, score
from grace_store.store.metadata_backup import write_copy
from grace_store.store.opened import Store
from grace_store.store.unit_writer import write_metadata
from tests.fake_model import make_fake_model
from tests.stores import STORAGES, make_records


def main(folder: Path) -> None:
    folder.mkdir(parents=True)
    scratch = Path(tempfile.mkdtemp())
    data = make_records(folder / "data.jsonl")
    named = re.sub(r'"id": "sample-(\d+)"', lambda found: f'{found[0]}, "half": {int(found[1]) % 2}', data.read_text())
    asked = {"prompt": [{"role": "user", "content": "What of it?"}], "steps": ["One."], "answer": "1"}
    unread = [json.dumps({"id": key, **asked, key: ["x"]}) + "\n" for key in ("tools", "videos")]
    data.write_text(named + "".join(unread))
    job = ExtractJob(
        store=str(folder / "store.zarr"),
        model=make_fake_model(scratch / "model"),
        data=(str(data),),
        data_request=DataSpec(format="explicit", min_steps=1, gather=True, group_by="half", ignore_key=("tools",)),
        samples_per_unit=4,
        door="tests.fake_model",
    )
    for storage in STORAGES:
        extract(replace(job, signal=storage, request=ExtractSpec(storage=storage, max_length=300)))
    store = Store.open(job.store)
    for name in store.signal_names:
        view = store.signal(name)
        # Where the model lay is nobody's business any more.
        view.signal = view.signal.model_copy(update={"origin": {"model": "model"}})
        write_copy(store.backend, view.signal)
        write_metadata(view.store, view.signal)
    found = {
        name: {
            "identity": store.signal(name).signal.identity(),
            "value": {
                sample_id: value
                for table in [score(store, ScoreRequest(signals=name))]
                for sample_id, value in zip(table.sample_id, table.value.tolist(), strict=True)
            },
        }
        for name in store.signal_names
    }
    plan = store.plan.digest()
    (folder / "expected.json").write_text(json.dumps({"plan": plan, "signals": found}, indent=1) + "\n")
    for path in (folder / "store.zarr" / "ledger" / "runs").iterdir():
        path.unlink()
    shutil.make_archive(str(folder / "store"), "zip", folder, "store.zarr")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
