"""Copies of checkpoints: in another folder, and at any URL of fsspec, such as ``s3://bucket/run``.

A checkpoint is written to the local directory first and then copied. Object stores cannot rename, so the
manifest is written last, and removed first: where it is, the arrays are. No copy is removed before the newest
checkpoint has one. The next upload completes or removes a copy that was interrupted. A run without
checkpoints begins with the copies and owns them from then on; the run before finds that out at its next copy,
and leaves them alone.
"""

import contextlib
import os
import secrets
import socket
from collections.abc import Iterator
from pathlib import Path

from dtrain.checkpoints.folder import (
    DISK,
    REMOVED,
    WRITTEN,
    checkpoint_path,
    free_name,
    latest,
    list_checkpoints,
    open_for_reading,
    rotate,
    set_aside,
    step_of,
)
from dtrain.checkpoints.manifest import MANIFEST, Manifest
from dtrain.checkpoints.reader import OpenCheckpoint, open_checkpoint
from dtrain.checkpoints.writer import save
from dtrain.errors import CheckpointDamagedError, CheckpointError, CopiesTakenError
from dtrain.formats.bounded_reading import JSON_BYTES_MAX, read_whole
from dtrain.formats.remote_files import driver_of, masked

PREFIX = "ckpt-"
OWNER_BYTES_MAX = 8192
"""A host, a path, of which Linux allows 4,096 bytes, and a number."""
OWNER = "owner"
"""The file, there and in the directory that is copied, that says whose the copies are."""


class RemoteCopies:
    """The copies at one URL. Only the process of the directory that claimed them last writes there.

    Attributes:
        url: without its user and password.
        warning: after `fetch`, names newer copies that were damaged; None if there are none.
    """

    def __init__(self, url: str, who: str = "checkpoint.remote") -> None:
        """Make no connection yet; `who` asks for the copies, for messages.

        Raises:
            SpecError: fsspec or the URL's driver is not installed, or the protocol is unknown.
        """
        self.url = masked(url)
        self.warning: str | None = None
        self._files, self._root = driver_of(url, f"{who}: ", "s3://bucket/run")

    def claim(self, directory: Path, *, successor: bool) -> None:
        """Make the copies this directory's; an `successor`, which has no checkpoints yet, takes another's
        over.

        For others, copies of another directory are a `CopiesTakenError`.
        """
        with self._explained("copy to"):
            if self._are_of(directory, or_refuse=not successor):
                return
            own = _owner_file(directory)
            if not own.exists():
                directory.mkdir(parents=True, exist_ok=True)
                own.write_text(f"{socket.gethostname()}:{directory} {secrets.token_hex(8)}")
            self._files.makedirs(self._root, exist_ok=True)
            self._files.pipe_file(f"{self._root}/{OWNER}", own.read_bytes())

    def upload(self, directory: Path) -> None:
        """Make the copies those of the checkpoints that `directory` holds now, the newest one first.

        Raises:
            CheckpointError: they cannot be written.
            CopiesTakenError: another directory has claimed them.
        """
        with self._explained("copy to"):
            self._are_of(directory, or_refuse=True)
            local = {found.step: found.path for found in list_checkpoints(directory)}
            for step, path in sorted(local.items(), reverse=True):
                self._copy(step, path)
            for step in self._steps() - local.keys():
                self._remove(step)

    def fetch(self, directory: Path, after: int | None = None) -> bool:
        """Download the newest sound copy of a step after `after`; return whether there was one.

        `after` None means the newest step that the directory holds.

        Raises:
            CheckpointError: it cannot be read or written.
            CheckpointDamagedError: there are copies, and all of them are damaged.
        """
        with self._explained("read from"):
            own = latest(directory)
            after = own.step if own and after is None else -1 if after is None else after
            newer = sorted(step for step in self._steps() if step > after)
            damaged: list[str] = []
            self.warning = None
            while newer:
                try:
                    if self._bring(newer[-1], directory):
                        self.warning = (
                            f"{'; '.join(damaged)}. Using ckpt-{newer[-1]} instead" if damaged else None
                        )
                        return True
                except CheckpointDamagedError as error:
                    damaged.append(f"ckpt-{newer[-1]} at {self.url} is damaged: {error}")
                newer.pop()
            if damaged and own is None:
                raise CheckpointDamagedError(f"no copy is sound: {'; '.join(damaged)}")
            return False

    def _are_of(self, directory: Path, *, or_refuse: bool) -> bool:
        """Return whether the copies are this directory's; unclaimed ones are not, nor refused."""
        try:
            owner: bytes = self._files.cat_file(f"{self._root}/{OWNER}", end=OWNER_BYTES_MAX)
        except FileNotFoundError:
            return False
        own = _owner_file(directory)
        if own.exists() and own.read_bytes() == owner:
            return True
        if or_refuse:
            other = owner.decode(errors="replace").rpartition(" ")[0]
            raise CopiesTakenError(
                f"the copies at {self.url} are those of {other}, not of {directory}: they stay as they are. "
                "Give each run a checkpoint.remote of its own"
            )
        return False

    def _bring(self, step: int, directory: Path) -> bool:
        """Download one copy and verify it; return False if it is gone, or was never finished."""
        directory.mkdir(parents=True, exist_ok=True)
        aside = free_name(directory, WRITTEN, step)
        aside.mkdir()
        try:
            manifest: bytes = self._files.cat_file(self._path(step, MANIFEST), end=JSON_BYTES_MAX + 1)
            described = Manifest.decode(manifest)
            if described.step != step:
                raise CheckpointDamagedError(f"its {MANIFEST} is of step {described.step}")
            names = list(described.files)
            for name in names:
                self._files.get_file(self._path(step, name), str(aside / name))
            (aside / MANIFEST).write_bytes(manifest)
            OpenCheckpoint(aside).close()
            for name in (*names, MANIFEST):
                with open(aside / name, "rb") as file:
                    DISK.sync(file)
        except FileNotFoundError:
            DISK.remove(aside)
            return False
        except BaseException:
            DISK.remove(aside)
            raise
        DISK.sync_directory(aside)
        for own in list_checkpoints(directory):
            if own.step == step:  # a damaged one
                set_aside(own, REMOVED, DISK)
        DISK.rename(aside, checkpoint_path(directory, step))
        DISK.sync_directory(directory)
        return True

    def _steps(self) -> set[int]:
        """Return the steps of all copies, also of those that are not whole."""
        self._files.invalidate_cache()
        try:
            steps = [
                step_of(Path(str(path).rstrip("/"))) for path in self._files.ls(self._root, detail=False)
            ]
        except FileNotFoundError:
            return set()
        return {step for step in steps if step is not None}

    def _copy(self, step: int, path: Path) -> None:
        try:
            lock = open_for_reading(path)  # rotation leaves it alone
        except FileNotFoundError:
            return  # it is gone
        try:
            manifest = read_whole(lock, JSON_BYTES_MAX, path / MANIFEST)
            try:
                names = list(Manifest.decode(manifest).files)
            except CheckpointDamagedError:
                return  # a reader will say so
            with contextlib.suppress(FileNotFoundError):
                if self._files.cat_file(self._path(step, MANIFEST)) == manifest:
                    return
                self._remove(step)  # of the same step, made before training went back
            self._files.makedirs(self._path(step), exist_ok=True)
            for name in names:
                self._files.put_file(str(path / name), self._path(step, name))
            self._files.pipe_file(self._path(step, MANIFEST), manifest)
        finally:
            os.close(lock)

    def _remove(self, step: int) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._files.rm_file(self._path(step, MANIFEST))
        self._files.rm(self._path(step), recursive=True)

    def _path(self, step: int, name: str = "") -> str:
        return f"{self._root}/{PREFIX}{step}/{name}".rstrip("/")

    @contextlib.contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        try:
            yield
        except CheckpointError:
            raise
        except Exception as error:  # drivers raise whatever their store's library does
            said = masked(f"{type(error).__name__}: {error}")
            raise CheckpointError(f"cannot {what} {self.url}: {said}") from error


def _owner_file(directory: Path) -> Path:
    return directory / f".{OWNER}-of-copies"


def remote_copies(url: str | None) -> RemoteCopies | None:
    return RemoteCopies(url) if url else None


def copy_latest(source: Path, target: Path, now: float) -> None:
    """Replace a folder's contents by another's newest sound checkpoint."""
    with open_checkpoint(source) as checkpoint:
        arrays = {name: checkpoint.read(name) for name in checkpoint.arrays}
        save(target, checkpoint.step, arrays, checkpoint.manifest.extra, now=now)
    rotate(target, keep=1, now=now)
