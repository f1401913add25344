"""Jobs that write a store: plan, extract, warm-up, verify and repair, doctor."""
