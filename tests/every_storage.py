"""Write a dataset and a store with a signal for each storage: ``python -m tests.every_storage FOLDER``. Needs no torch.

Traces have a label, `right`, and two of them answer a `question`. A last signal, `gradient`, has a vector per sample.
Beside them, results.csv has the results of two benchmarked models.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from grace_store.base.settings import ExtractSpec
from grace_store.run.extract import extract
from tests.jobs import NUM_USABLE, make_job, record
from tests.stores import STORAGES


def main(folder: Path) -> None:
    records = [record(i) | {"right": i % 3 > 0, "question": f"q{i // 2}"} for i in range(NUM_USABLE)]
    (folder / "traces.jsonl").write_text("".join(json.dumps(each) + "\n" for each in records))
    (folder / "results.csv").write_text("run,a\nFull,50\nSubset,45\n")
    for storage in STORAGES:
        extract(make_job(folder, signal=storage, request=ExtractSpec(storage=storage)))
    extract(make_job(folder, signal="gradient", request=ExtractSpec(kind="gradient")))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
