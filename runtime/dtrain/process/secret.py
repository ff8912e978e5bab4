"""The secret of a run: how it is made, recognised, read and written, and the one that each user has.

Tasks of clusters on loopback that are started by hand and given no secret prove that of their user. It is one
for all clusters, as a worker that joins knows an address and no cluster. See
docs/design/protocol.md#authentication.
"""

import contextlib
import functools
import os
import re
import secrets
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

from dtrain.errors import SpecError

SHORTEST_CHARACTERS = 16
_LONGEST_BYTES = 4096
_MADE = re.compile(r"dtrain1-[0-9a-f]{64}")


def new_secret() -> str:
    """Return a new secret of 256 random bits, which `is_random` recognises."""
    return f"dtrain1-{secrets.token_hex(32)}"


def is_random(secret: str) -> bool:
    """Return whether dtrain has made this secret: it cannot be guessed, so its key need not be slow to
    compute.
    """
    return _MADE.fullmatch(secret) is not None


def said_secret(said: str | None) -> str | None:
    """Return the secret in DTRAIN_SECRET; None where it is not set, or empty.

    Raises:
        SpecError: it is too short.
    """
    return _checked(said, "DTRAIN_SECRET in the environment") if said else None


def read_secret(path: Path) -> str:
    """Return the secret in a file that its owner alone can read; warn once of one that a person chose.

    Raises:
        SpecError: the file cannot be read, belongs to another user, can be read by others, or holds no such
            secret.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            _check_owner(path, os.fstat(descriptor))
            data = file.read(_LONGEST_BYTES + 1)
            secret = data.decode().strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise SpecError(f"{path}: cannot read the secret: {reason}") from None
    if len(data) > _LONGEST_BYTES or not secret:
        found = "more than 4 KiB" if secret else "an empty file"
        raise SpecError(f"{path}: expected the run's secret, found {found}")
    if not is_random(_checked(secret, str(path))):
        _warn_once(path)
    return secret


@functools.cache
def _warn_once(path: Path) -> None:
    print(  # noqa: T201
        f"dtrain: {path}: a person's secret can be guessed by whoever stands at the address; "
        "`dtrain secret FILE` makes one that cannot",
        file=sys.stderr,
    )


def write_secret(path: Path) -> None:
    """Make a secret and write it to a new file of mode 0600.

    Raises:
        SpecError: the file exists already, or cannot be written.
    """
    try:
        _write_new(path)
    except FileExistsError:
        raise SpecError(f"{path} exists already; a secret is never overwritten") from None
    except OSError as error:
        raise SpecError(f"{path}: cannot write the secret: {error.strerror}") from None


def _write_new(path: Path) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(f"{new_secret()}\n")


def users_secret() -> str:
    """Return the secret of this user; make it if there is none yet. Tasks that start at once agree on one.

    Raises:
        SpecError: there is no place for it, or what lies there is another user's, can be read by others, or
            is no secret that dtrain has made.
    """
    problem = "this user has neither a home nor an XDG_RUNTIME_DIR"
    for folder in _folders():
        try:
            folder.mkdir(0o700, parents=True, exist_ok=True)
            return _secret_in(folder)
        except OSError as error:
            problem = f"{folder}: {error.strerror}"
    raise SpecError(
        f"{problem}: the secret cannot be kept that tasks on loopback prove if they are given none; "
        "make one with `dtrain secret FILE` and give every task the same --secret-file FILE or DTRAIN_SECRET"
    )


def _folders() -> Iterator[Path]:
    """Yield the folder of this user's secret, and the one to take where it cannot be kept there.

    The runtime folder comes second: not every session has one, and it goes with the last session of a user
    whose tasks go on.
    """
    with contextlib.suppress(RuntimeError):
        yield state_home() / "dtrain" / "loopback"
    if runtime := os.environ.get("XDG_RUNTIME_DIR"):
        yield Path(runtime) / "dtrain"


def _secret_in(folder: Path) -> str:
    """Return the secret in a folder; raise an `OSError` if it cannot be kept there."""
    path, facts = folder / "secret", folder.lstat()
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.geteuid() or facts.st_mode & 0o077:
        raise SpecError(f"{folder}: expected a folder, no link, that belongs to you and has mode 0700")
    if path.is_symlink():
        raise SpecError(f"{path}: expected a file with the secret of this user, found a link; remove it")
    if not path.exists():
        whole = folder / secrets.token_hex(8)
        try:
            _write_new(whole)
            with contextlib.suppress(FileExistsError):  # another task was faster
                os.link(whole, path)
        finally:
            whole.unlink(missing_ok=True)
    secret = read_secret(path)
    if not is_random(secret):
        raise SpecError(f"{path}: expected a secret as dtrain makes it, found something else; remove it")
    return secret


def _checked(secret: str, where: str) -> str:
    """Return a secret that is long enough; the message never shows it."""
    if len(secret) < SHORTEST_CHARACTERS:
        raise SpecError(
            f"{where}: expected a secret of at least {SHORTEST_CHARACTERS} characters, found {len(secret)}; "
            "make one with `dtrain secret FILE`"
        )
    return secret


def _check_owner(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise SpecError(f"{path}: expected a file with the run's secret, found something else")
    if status.st_uid != os.getuid():
        raise SpecError(
            f"{path}: the file with the secret belongs to another user (id {status.st_uid}); "
            "it must belong to you"
        )
    if status.st_mode & 0o077:
        mode = stat.S_IMODE(status.st_mode)
        raise SpecError(
            f"{path}: others can read the secret (mode {mode:04o}); take it from them with `chmod 600 {path}`"
        )


def state_home() -> Path:
    """Return XDG's folder for what programs of this user keep; raise a `RuntimeError` if there is no home."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
