"""`dt.train`: checkpoints of loops of one's own, as in `tf.train`."""

from typing import TYPE_CHECKING

from dtrain.absent_names import absent_from
from dtrain.saving.program_checkpoint import Checkpoint, CheckpointManager, latest_checkpoint

__all__ = ["Checkpoint", "CheckpointManager", "latest_checkpoint"]

if not TYPE_CHECKING:
    __getattr__ = absent_from("dtrain.train", __all__)
