"""Records to samples: files, formats, step splitting, image references. Needs no model and no store."""
