"""The store of the code that was sent, and which runs use what: code that no run uses any more is removed.

`.users` in the store has a file for each use, named by the digest and the run's directory on its host: homes
are one disk on many clusters, so that the runs of several hosts use one store.
"""

import contextlib
import hashlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from dtrain.process import file_lock
from dtrain_cli.code.unpacking import discard

_USERS = ".users"
_LOCK = ".lock"
LOCK_S = 25.0
"""Less than a launcher waits for the answer."""


@contextlib.contextmanager
def locked(store: Path) -> Iterator[None]:
    """Hold the lock of a store, under which one process alone lays out or removes code.

    Raises:
        WaitTimeoutError: another process has held the store for longer than `LOCK_S`.
    """
    store.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(store / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        with file_lock.locked(descriptor, LOCK_S, f"lay out or remove code in {store}"):
            yield
    finally:
        os.close(descriptor)


def use(store: Path, digest: str, run_dir: Path) -> None:
    """Note, with the store locked, that a run uses this code, and no other code any more."""
    users = store / _USERS
    users.mkdir(mode=0o700, exist_ok=True)
    own = users / f"{digest}.{_user(run_dir)}"
    own.touch(mode=0o600)
    _release(store, [each for each in users.glob(f"*.{_user(run_dir)}") if each != own])


def release(store: Path, run_dir: Path) -> None:
    """Note that a run uses no code any more, and remove what no other run uses."""
    if (store / _USERS).is_dir():
        with locked(store):
            _release(store, list((store / _USERS).glob(f"*.{_user(run_dir)}")))


def _release(store: Path, uses: list[Path]) -> None:
    for each in uses:
        each.unlink(missing_ok=True)
        digest = each.name.partition(".")[0]
        if not any((store / _USERS).glob(f"{digest}.*")):
            discard(store / digest)


def _user(run_dir: Path) -> str:
    return hashlib.blake2b(os.fsencode(f"{socket.gethostname()}:{run_dir}"), digest_size=16).hexdigest()
