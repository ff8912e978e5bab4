"""Checkpoints that survive a crash at any write. Rule 11.

<directory>/ckpt-<step>/
    manifest.json           `Manifest`: step, sizes and checksums of all files, and whatever else a run must
        remember
    <name>.safetensors      arrays, in the safetensors format, so that every framework reads them

1. One process writes into a directory. Everything is written aside (`.tmp-...`) and fsynced, the manifest
   last; one rename makes it a checkpoint. Whatever a crash leaves is swept up by the next write.
2. A reader checks sizes and checksums before it believes anything. From a damaged checkpoint it turns to the
   one before it, and says so; it never guesses.
3. A reader holds a shared lock while it reads; rotation passes locked ones by.
4. The highest step is the newest: writing a step sets aside those of later steps, from which training has
  gone back.
5. An array is stored under its variable's name (`slot_key` for an optimizer's slot), whole or as rows under
   `part_key`. Who restores asks for whole variables or any rows of them; it need not know how many servers
   wrote them.
6. Nothing is unpickled, and no name in a file is followed as a path.
"""

from dtrain.checkpoints.copy import copy_latest
from dtrain.checkpoints.evaluated import EvaluatedCheckpoint, Pace
from dtrain.checkpoints.finals import final_of, keep_final
from dtrain.checkpoints.folder import CheckpointPath, latest, list_checkpoints
from dtrain.checkpoints.keys import is_slot, part_key, slot_key, split_slot_key
from dtrain.checkpoints.manifest import MANIFEST, Manifest
from dtrain.checkpoints.optimizer_state import OptimizerState
from dtrain.checkpoints.reader import Checkpoint, open_checkpoint
from dtrain.checkpoints.remote import RemoteCopies, remote_copies
from dtrain.checkpoints.rotation import rotate
from dtrain.checkpoints.tensor_file import Entry
from dtrain.checkpoints.writer import CheckpointWriter, Streamed, save

__all__ = [
    "MANIFEST",
    "Checkpoint",
    "CheckpointPath",
    "CheckpointWriter",
    "Entry",
    "EvaluatedCheckpoint",
    "Manifest",
    "OptimizerState",
    "Pace",
    "RemoteCopies",
    "Streamed",
    "copy_latest",
    "final_of",
    "is_slot",
    "keep_final",
    "latest",
    "list_checkpoints",
    "open_checkpoint",
    "part_key",
    "remote_copies",
    "rotate",
    "save",
    "slot_key",
    "split_slot_key",
]
