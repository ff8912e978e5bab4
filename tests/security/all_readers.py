"""Every reader of files and of the environment, for the fuzzer."""

import io
from contextlib import redirect_stderr
from pathlib import Path

from security.data_readers import data_files, row_files
from security.host_readers import agent_readers
from security.readers import Reader
from security.run_readers import campaigns, environments, records, specs
from security.trained_readers import changed_checkpoint, files_of_keras, models, read_checkpoint, saved_run


def all_readers(folder: Path) -> dict[str, Reader]:
    """Return every reader by its name."""
    sound = [saved_run(folder / "run")]
    with redirect_stderr(io.StringIO()):
        return {
            **dict(models(folder)),
            **dict(files_of_keras()),
            "checkpoints": Reader(sound, changed_checkpoint, read_checkpoint),
            **dict(data_files(folder)),
            **dict(row_files(folder)),
            **dict(environments(folder)),
            **dict(agent_readers(folder)),
            "records": records(folder),
            "specs": specs(folder),
            "campaigns": campaigns(folder),
        }
