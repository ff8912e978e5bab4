"""The evaluator: `machine` decides which checkpoint is next, `driver` runs it over a folder of them."""
