"""The distribution of a dataset over workers and replicas, as rewrites of its pipeline."""
