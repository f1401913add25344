"""Where measures of diversity are written: a document and a picture; never over what they are made from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from grace_store.errors import SettingError
from grace_store.job.diversity import Diversity
from grace_store.job.outputs import check_outputs, sources_of
from grace_store.select.files import write_json
from grace_store.store import Store
from grace_store.whole_files import whole_file


def check_diversity_outputs(
    store: Store | str | Path, inputs: Sequence[Path | None], out: Path | None, curve: Path | None
) -> None:
    """Raise SettingError if a file about to be written is one that is read, or both are one."""
    opened = store if isinstance(store, Store) else Store.open(store)
    targets = [path for path in (out, curve) if path is not None]
    if out is not None and out == curve:
        raise SettingError(f"--out and --curve are both {out}: give each a name of its own")
    read = [(path, "which is measured") for path in inputs if path is not None]
    check_outputs(targets, [*sources_of(opened), *read])


def write_diversity(found: Diversity, out: Path | None = None, curve: Path | None = None) -> None:
    """Write everything as JSON, and the curve as SVG."""
    if out is not None:
        write_json(out, found.to_dict())
    if curve is not None and found.curve is not None:
        note = f"{found.made_by['num_samples']} samples of {found.made_by['store']}"
        with whole_file(curve) as partial:
            partial.write_text(found.curve.picture(note), encoding="utf-8")
