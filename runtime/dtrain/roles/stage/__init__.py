"""A stage of a pipeline: `machine` decides what it answers, `driver` runs it beside the training thread."""
