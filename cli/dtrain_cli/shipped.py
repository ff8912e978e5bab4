"""The examples, their data and the cluster specs that come with dtrain, and copies of them.

A wheel has them in the package, below `shipped/`; an installation from a clone uses those of the clone. A
copy keeps the folders `examples/` and `cluster_specs/`, so that the command lines in their texts hold there.
"""

import ast
import re
from importlib import resources
from pathlib import Path

from dtrain.errors import SpecError

_FOLDERS = ("examples", "examples/data", "cluster_specs")
START = Path("examples/start")
"""The folder whose files `dtrain init` writes."""
_CAMPAIGN = "campaign.yaml"


def root() -> Path:
    """Return the folder that has `examples/` and `cluster_specs/`."""
    package = Path(str(resources.files("dtrain_cli")))
    return there if (there := package / "shipped").is_dir() else package.parents[1]


def examples() -> dict[str, str]:
    """Return the name of every example, and the first sentence of what it says of itself."""
    found = {}
    for path in sorted([*(root() / "examples").glob("*.py"), root() / "examples" / _CAMPAIGN]):
        text = path.read_text(encoding="utf-8")
        said = ast.get_docstring(ast.parse(text)) or "" if path.suffix == ".py" else text.lstrip("# ")
        if f"examples/{path.name}" in said:  # else it is a module of others
            paragraph = " ".join(said.partition("\n#" if path.suffix != ".py" else "\n\n")[0].split())
            found[path.stem] = f"{paragraph.partition('. ')[0].removesuffix('.')}."
    return found


def files_of(example: str) -> list[Path]:
    """Return the files of an example, relative to `root()`: its own, and all that those name or import.

    Raises:
        SpecError: there is no such example.
    """
    if example not in (known := examples()):
        raise SpecError(f"there is no example {example}; expected one of {', '.join(known)}")
    there = [path for folder in _FOLDERS for path in sorted((root() / folder).glob("*.*"))]
    wanted = [
        path for path in there if path.name.startswith(f"{example}.") and path.parent == root() / _FOLDERS[0]
    ]
    for path in wanted:  # grows meanwhile
        text = path.read_bytes().decode(errors="replace")
        wanted += [each for each in there if each not in wanted and _needs(path, text, each)]
    return [path.relative_to(root()) for path in wanted]


def _needs(path: Path, text: str, other: Path) -> bool:
    if path.suffix == ".gz":
        return other.parent == path.parent  # the page that says whose data they are
    if other.suffix == ".py" and path.suffix == ".py":
        return re.search(rf"^(from|import) {re.escape(other.stem)}\b", text, re.MULTILINE) is not None
    return other.name != "README.md" and other.name in text


def copy(files: dict[Path, Path], to: Path) -> list[Path]:
    """Copy files to places below `to`, and return those places. What has the same bytes there stays.

    Raises:
        SpecError: another file is there already; nothing has been copied.
    """
    data = {to / place: source.read_bytes() for place, source in files.items()}
    for path, content in data.items():
        if path.exists() and (path.is_dir() or path.read_bytes() != content):
            raise SpecError(
                f"{path}: exists and is another file, which is not overwritten; name another folder"
            )
    for path, content in data.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            path.write_bytes(content)
    return list(data)
