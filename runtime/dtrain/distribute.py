"""`dt.distribute.partitioners`: where `tf.distribute.experimental.partitioners` would be looked for."""

from dtrain import partitioning as partitioners

__all__ = ["partitioners"]
