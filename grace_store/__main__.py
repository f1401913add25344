"""``python -m grace_store`` is ``grace-store``."""

from grace_store.cli import main

main(prog_name="grace-store")
