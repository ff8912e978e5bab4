"""The place of a model that a program saves without a path: the folder that a managed job names."""

import os
from pathlib import Path

from dtrain.errors import SpecError
from dtrain.formats.remote_files import is_url
from dtrain.process.engines import vertex
from dtrain.saving.destination import NAME_IN_FOLDER, FilePath


def path_or_job_folder(path: FilePath | None, name: str) -> FilePath:
    """Return the path of a program; without one, `name` in the folder that AIP_MODEL_DIR of Vertex AI names.

    Raises:
        SpecError: there is neither.
    """
    if path is not None:
        return path
    if not (folder := os.environ.get(vertex.MODEL)):
        raise SpecError(
            f"no path to save the model at: expected one, or {vertex.MODEL} in the environment, which a job "
            "of Vertex AI with a base output directory has"
        )
    if is_url(folder):
        return f"{folder.rstrip('/')}/{'' if name == NAME_IN_FOLDER else name}"
    return Path(folder, name)
