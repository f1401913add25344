"""Plan, run units, finish; engines; and what each command does with a store."""
