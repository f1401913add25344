"""What grace-store costs, measured: ``python -m jobs.bench``."""
