"""Planted bugs of checkpoints: what takes a damaged one for whole, or removes one that is needed."""

from mutant import bug

REMOTE = "checkpoints/copies.py"
TENSORS = "checkpoints/tensor_file.py"
ROTATION = "checkpoints/folder.py"

FOUND = [
    bug(REMOTE, "RemoteCopies.upload", "self._are_of(directory, or_refuse=True)"),
    bug(REMOTE, "RemoteCopies._bring", "described.step != step", "False"),
    bug(REMOTE, "RemoteCopies._bring", "OpenCheckpoint(aside).close()"),
    bug("checkpoints/manifest.py", "Manifest.decode", "not _is_as_written(fields, data)", "False"),
    bug(TENSORS, "decode_header", "begin != position or end - begin != entry.nbytes", "False"),
    bug(TENSORS, "decode_header", "len(text) + position != file_bytes", "False"),
    bug("checkpoints/manifest.py", "_join", "row_start != rows", "False"),
    bug(
        ROTATION,
        "rotate",
        "checkpoint.step not in preserved and not is_read(checkpoint.path)",
        "checkpoint.step not in preserved",
    ),
    bug(ROTATION, "rotate", "leaving = [found for found in leaving if found != whole]"),
    bug("checkpoints/folder.py", "sweep", "checkpoint.path.name.startswith(REPLACED)", "False"),
    bug("state/fit_state.py", "FitState.of", "type(found) is int and found != FORMAT", "False"),
]
