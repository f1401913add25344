"""Write a golden store: ``python -m tests.golden.make_store FOLDER [gather|ignore]``.

It is run by the code of the version to keep. One proxy signal for each storage, from the fake model, zipped; what
scoring says of each is written beside it. With gather, every other sample is of one question, and the plan brings them
together. With ignore, one more record has tools, without which it is read, and another has videos, for which it is set
aside.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from grace_store.base.settings import DataRequest, ExtractRequest
from grace_store.curate.score import ScoreRequest, score
from grace_store.run.extract import ExtractJob, extract
from grace_store.store.copies import write_copy
from grace_store.store.opened import Store
from grace_store.store.unit_writer import rewrite_signal_metadata
from tests.fake_model import make_fake_model
from tests.stores import STORAGES, make_records


def main(folder: Path, gather: bool, ignore: bool) -> None:
    folder.mkdir(parents=True)
    scratch = Path(tempfile.mkdtemp())
    data = make_records(folder / "data.jsonl")
    wishes: dict[str, Any] = {}
    if gather:
        named = re.sub(
            r'"id": "sample-(\d+)"', lambda found: f'{found[0]}, "half": {int(found[1]) % 2}', data.read_text()
        )
        data.write_text(named)
        wishes = {"gather": True, "group_by": "half"}
    if ignore:
        asked = {"prompt": [{"role": "user", "content": "What of it?"}], "steps": ["One."], "answer": "1"}
        with data.open("a") as lines:
            lines.writelines(json.dumps({"id": key, **asked, key: ["x"]}) + "\n" for key in ("tools", "videos"))
        wishes = {"ignore_key": ("tools",)}
    job = ExtractJob(
        store=str(folder / "store.zarr"),
        model=make_fake_model(scratch / "model"),
        data=(str(data),),
        data_request=DataRequest(format="explicit", min_steps=1, **wishes),
        samples_per_unit=4,
        door="tests.fake_model",
    )
    for storage in STORAGES:
        extract(replace(job, signal=storage, request=ExtractRequest(storage=storage, max_length=300)))
    store = Store.open(job.store)
    for name in store.signal_names:
        view = store.signal(name)
        # Where the model lay is nobody's business any more.
        view.signal = view.signal.model_copy(update={"origin": {"model": "model"}})
        write_copy(store.backend, view.signal)
        rewrite_signal_metadata(view)
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
    main(Path(sys.argv[1]), gather="gather" in sys.argv[2:], ignore="ignore" in sys.argv[2:])
