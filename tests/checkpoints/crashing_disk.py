"""A disk, and everything that it may hold after the machine has crashed.

The model is what POSIX promises, and no more. Every journalling file system keeps to it, and each adds some
order of its own:

- The bytes of a file are on the disk after the fsync of the file. Before, they may be lost: all of them, the
  second half, or their content although the length is there.
- A name is on the disk after the fsync of the directory in which it stands. The fsync of a file does not save
  its name, and the fsync of a directory does not save the directory's own name. Before, each change of a
  directory (a new name, a removed one, a name that is exchanged for another in one move) may be lost alone,
  so that of all changes any subset survives. Changes of the same name keep their order: where a change is
  lost, so is every later one that builds on it. A directory is removed name by name, and itself last.
- A directory is found by its name alone: where that is lost, everything in it is.

A process that is killed loses nothing, but what it has not synced may still be lost later, when the machine
crashes.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from dtrain.checkpoints.folder import FileOperations

ROOT = 0
Tree = frozenset[tuple[str, bytes | None]]
"""What a disk holds: paths below the root, files with their bytes and directories with None."""


@dataclass(frozen=True)
class Change:
    """One change of a directory: some of its names, and the number of what each means afterwards (None:
    nothing).

    Attributes:
        builds_on: the names, each with its directory, whose earlier changes are not lost unless this one is.
    """

    directory: int
    names: dict[str, int | None]
    builds_on: frozenset[tuple[int, str]]


@dataclass
class Surface:
    """What is on the disk for certain, and what may be.

    Attributes:
        names: of every directory, the names that are certainly on the disk.
        pending: the changes of directories that may be lost, in their order.
        files: the bytes of every file.
        unsynced: the files whose bytes may be lost.
    """

    names: dict[int, dict[str, int]] = field(default_factory=lambda: {ROOT: {}})
    pending: list[Change] = field(default_factory=list)
    files: dict[int, bytes] = field(default_factory=dict)
    unsynced: set[int] = field(default_factory=set)

    def copy(self) -> "Surface":
        names = {directory: dict(inside) for directory, inside in self.names.items()}
        return Surface(names, list(self.pending), dict(self.files), set(self.unsynced))

    def new(self, content: bytes | None) -> int:
        number = 1 + max(*self.names, *self.files, 0)
        if content is None:
            self.names[number] = {}
        else:
            self.files[number] = content
        return number

    def with_changes(self, kept: list[Change]) -> dict[int, dict[str, int]]:
        names = {directory: dict(inside) for directory, inside in self.names.items()}
        for change in kept:
            inside = names[change.directory]
            for name, number in change.names.items():
                if number is None:
                    inside.pop(name, None)
                else:
                    inside[name] = number
        return names

    def survivors(self) -> Iterator[list[Change]]:
        """Every set of pending changes that may survive a crash."""

        def choose(at: int, kept: list[Change], lost: set[tuple[int, str]]) -> Iterator[list[Change]]:
            if at == len(self.pending):
                yield kept
                return
            change = self.pending[at]
            if not change.builds_on & lost:
                yield from choose(at + 1, [*kept, change], lost)
            yield from choose(at + 1, kept, lost | {(change.directory, name) for name in change.names})

        yield from choose(0, [], set())

    def tree(self, names: dict[int, dict[str, int]], content: dict[int, bytes]) -> Tree:
        found: set[tuple[str, bytes | None]] = set()

        def look(directory: int, path: str) -> None:
            for name, number in names[directory].items():
                found.add((path + name, content.get(number)))
                if number in names:
                    look(number, f"{path}{name}/")

        look(ROOT, "")
        return frozenset(found)

    def trees(self) -> set[Tree]:
        """Everything that the disk may hold after a crash at this moment."""
        losses = [lambda data: data]
        if self.unsynced:
            losses += [lambda data: b"", lambda data: data[: len(data) // 2], lambda data: bytes(len(data))]
        contents = [
            {**self.files, **{number: loss(self.files[number]) for number in self.unsynced}}
            for loss in losses
        ]
        return {
            self.tree(names, content)
            for names in map(self.with_changes, self.survivors())
            for content in contents
        }

    def sync(self, directory: int) -> None:
        self.names = self.with_changes([change for change in self.pending if change.directory == directory])
        there = {ROOT, *(number for inside in self.names.values() for number in inside.values())}
        there |= {number for change in self.pending for number in change.names.values() if number is not None}
        gone = self.names.keys() - there
        self.names = {number: inside for number, inside in self.names.items() if number not in gone}
        self.pending = [change for change in self.pending if change.directory not in gone | {directory}]


@dataclass
class Moment:
    """A moment between two operations: what is on the disk, and what a process sees that goes on without a
    crash.

    Attributes:
        surface: the disk at this moment.
        covered: what a crash may leave now, or something as bad, it may leave at the next moment too: what
            follows is no sync.
    """

    surface: Surface
    covered: bool = False

    def trees(self) -> set[Tree]:
        return self.surface.trees()

    @property
    def seen(self) -> Tree:
        return self.surface.tree(self.surface.with_changes(self.surface.pending), self.surface.files)


class CrashingDisk(FileOperations):
    """Does what it is asked below a root, and remembers the moment before the first operation and those after
    each.

    Attributes:
        moments: at any of them the machine may crash, or the process be killed.
    """

    def __init__(self, root: Path, surface: Surface | None = None) -> None:
        """Begin with what lies below the root: all of it is on the disk, unless a `surface` says what is
        not.
        """
        self._root = root
        self._surface = surface or _read(root)
        self.moments: list[Moment] = []
        self._note()

    def _note(self, *, synced: bool = False) -> None:
        if self.moments:
            self.moments[-1].covered = not synced
        self.moments.append(Moment(self._surface.copy()))

    def _number(self, path: Path) -> int | None:
        number, names = ROOT, self._surface.with_changes(self._surface.pending)
        for name in path.relative_to(self._root).parts:
            if name not in names[number]:
                return None
            number = names[number][name]
        return number

    def _change(
        self, directory: Path, names: dict[str, int | None], after: Iterable[tuple[int, str]] = ()
    ) -> None:
        number = self._number(directory)
        assert number is not None
        builds_on = frozenset([*((number, name) for name in names), *after])
        self._surface.pending.append(Change(number, names, builds_on))
        self._note()

    def make_directory(self, path):
        missing = [made for made in (path, *path.parents) if not made.exists()]
        super().make_directory(path)
        for made in reversed(missing):
            if self._number(made) is None:
                self._change(made.parent, {made.name: self._surface.new(None)})

    def create(self, path):
        file = super().create(path)
        number = self._surface.new(b"")
        self._surface.unsynced.add(number)
        self._change(path.parent, {path.name: number})
        return file

    def write(self, file, data):
        super().write(file, data)
        self._surface.files[self._number(Path(file.name))] += bytes(data)
        self._note()

    def sync(self, file):
        self._surface.unsynced.discard(self._number(Path(file.name)))
        self._note(synced=True)

    def sync_directory(self, path):
        self._surface.sync(self._number(path))
        self._note(synced=True)

    def link(self, source, target):
        number = self._number(source)
        super().link(source, target)
        self._change(target.parent, {target.name: number})

    def rename(self, source, target):
        assert source.parent == target.parent, "a move between two directories is not modelled"
        number = self._number(source)
        super().rename(source, target)
        self._change(source.parent, {source.name: None, target.name: number})

    def remove(self, path):
        number, gone = self._number(path), []
        for inner in sorted(path.iterdir()):
            self._change(path, {inner.name: None}, after=gone)
            gone.append((number, inner.name))
        super().remove(path)
        self._change(path.parent, {path.name: None}, after=gone)


def _read(root: Path) -> Surface:
    surface = Surface()

    def look(directory: int, path: Path) -> None:
        for inner in sorted(path.iterdir()):
            number = surface.new(None if inner.is_dir() else inner.read_bytes())
            surface.names[directory][inner.name] = number
            if inner.is_dir():
                look(number, inner)

    look(ROOT, root)
    return surface


def lay_out(tree: Tree, root: Path) -> Path:
    """Make a directory that holds what a disk held."""
    root.mkdir()
    for path, content in sorted(tree, key=lambda entry: entry[0]):
        if content is None:
            (root / path).mkdir()
        else:
            (root / path).write_bytes(content)
    return root
