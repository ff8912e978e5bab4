"""The part of a task in a cluster that is the same under every strategy with several tasks."""
