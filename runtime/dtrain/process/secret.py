"""The secret of a run: how it is made, recognised, read and written."""

import os
import re
import secrets
import stat
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
    """Return the secret in a file that its owner alone can read.

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
    return _checked(secret, str(path))


def write_secret(path: Path) -> None:
    """Make a secret and write it to a new file of mode 0600.

    Raises:
        SpecError: the file exists already, or cannot be written.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(f"{new_secret()}\n")
    except FileExistsError:
        raise SpecError(f"{path} exists already; a secret is never overwritten") from None
    except OSError as error:
        raise SpecError(f"{path}: cannot write the secret: {error.strerror}") from None


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
