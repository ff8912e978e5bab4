"""`dt.train`: checkpoints of loops of one's own, as in `tf.train`."""

from dtrain.saving.program_checkpoint import Checkpoint, CheckpointManager, latest_checkpoint

__all__ = ["Checkpoint", "CheckpointManager", "latest_checkpoint"]
