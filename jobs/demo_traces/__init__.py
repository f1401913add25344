"""Makes the traces that ship as the demo's data: `python -m jobs.demo_traces.traces`."""
