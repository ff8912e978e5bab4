"""Checkpoints that survive a crash at any write.

<directory>/ckpt-<step>/
    manifest.json           `Manifest`: step, sizes and checksums of all files, and other state of the run
    <name>.safetensors      arrays, in the safetensors format, so that every framework reads them

The rule *Consistent checkpoints* (docs/design/protocol.md#consistent-checkpoints) needs of these files:

1. One process writes into a directory. Everything is written aside (`.tmp-...`) and fsynced, the manifest
   last; one rename makes it a checkpoint. The next write sweeps up the remains of a crash.
2. A reader checks sizes and checksums first. It passes over a damaged checkpoint to the one before it, with a
   warning; it never guesses.
3. A reader holds a shared lock while it reads; rotation leaves locked checkpoints alone.
4. The highest step is the newest: writing a step sets aside those of later steps, from which training has
   gone back.
5. An array is stored under its variable's name (`slot_key` for an optimizer's slot), whole or as rows under
   `part_key`. A reader asks for whole variables or any rows of them, without knowing how many servers wrote
   them.
6. Nothing is unpickled, and no name in a file is followed as a path.
"""

from dtrain.checkpoints.copies import RemoteCopies, copy_latest, remote_copies
from dtrain.checkpoints.folder import CheckpointPath, final_of, keep_final, latest, list_checkpoints, rotate
from dtrain.checkpoints.manifest import (
    MANIFEST,
    Manifest,
    OptimizerState,
    is_slot,
    part_key,
    read_manifest,
    slot_key,
    split_slot_key,
)
from dtrain.checkpoints.reader import EvaluatedCheckpoint, OpenCheckpoint, Pace, open_checkpoint
from dtrain.checkpoints.tensor_file import TensorEntry
from dtrain.checkpoints.writer import CheckpointWriter, Streamed, save

__all__ = [
    "MANIFEST",
    "CheckpointPath",
    "CheckpointWriter",
    "EvaluatedCheckpoint",
    "Manifest",
    "OpenCheckpoint",
    "OptimizerState",
    "Pace",
    "RemoteCopies",
    "Streamed",
    "TensorEntry",
    "copy_latest",
    "final_of",
    "is_slot",
    "keep_final",
    "latest",
    "list_checkpoints",
    "open_checkpoint",
    "part_key",
    "read_manifest",
    "remote_copies",
    "rotate",
    "save",
    "slot_key",
    "split_slot_key",
]
