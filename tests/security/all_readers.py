"""Every reader of files and of the environment, for the fuzzer."""

import io
from contextlib import redirect_stderr
from pathlib import Path

from security.data_readers import data_files, row_files
from security.host_readers import agent_readers
from security.readers import Reader
from security.run_readers import environments, records, specs
from security.trained_readers import changed_checkpoint, models, read_checkpoint, saved_run


def all_readers(folder: Path) -> dict[str, Reader]:
    """Return every reader by its name."""
    sound = [saved_run(folder / "run")]
    with redirect_stderr(io.StringIO()):
        return {
            **dict(models(folder)),
            "checkpoints": Reader(sound, changed_checkpoint, read_checkpoint),
            **dict(data_files(folder)),
            **dict(row_files(folder)),
            **dict(environments(folder)),
            **dict(agent_readers(folder)),
            "records": records(folder),
            "specs": specs(folder),
        }
