"""The ids of the chosen samples, one on each line."""

from grace_store.base.files import TEXT, write_lines
from grace_store.choose.exports.export_kind import Export

EXPORT = Export(
    write=lambda chosen, exported: write_lines(exported.out, (text.encode() for text in chosen.subset.sample_id)),
    formats=(TEXT,),
    needs_dataset=False,
)
