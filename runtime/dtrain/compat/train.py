"""`dt.train`: checkpoints of loops of one's own, as in `tf.train`."""

from dtrain.process.tensorflow import TFClusterSpec as ClusterSpec
from dtrain.saving.program_checkpoint import Checkpoint, CheckpointManager, latest_checkpoint

__all__ = ["Checkpoint", "CheckpointManager", "ClusterSpec", "latest_checkpoint"]
