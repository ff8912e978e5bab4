"""The certificate of a task with all that belongs to it, as files hold it or a launcher hands it over."""

import os
import stat
from pathlib import Path

import msgspec

from dtrain.errors import SpecError
from dtrain.formats.bounded_reading import open_regular, read_whole

HANDED_OVER = "DTRAIN_TLS_MATERIAL"
"""The private variable (`process.private_variables`) in which a launcher hands it over."""
LONGEST_BYTES = 1 << 20
"""No file of certificates is longer than this."""
_FORBIDDEN, _FORBIDDEN_OF_ROOT = 0o077, 0o027
"""Modes of keys that are refused. Kubernetes mounts a key as root's, readable for the user's group: as in
PostgreSQL that is allowed.
"""


class TlsMaterial(msgspec.Struct, frozen=True):
    """A certificate and all that belongs to it, in PEM.

    Attributes:
        authorities: one or several certificates, of which each peer's must descend from one.
        certificate: the task's own, and those between it and an authority.
        key: its private key.
    """

    authorities: bytes
    certificate: bytes
    key: bytes

    def __repr__(self) -> str:
        return "TlsMaterial()"  # without its key

    def to_text(self) -> str:
        """Return the text that `from_text` reads."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_text(cls, text: str) -> "TlsMaterial":
        """Read what a launcher has handed over.

        Raises:
            SpecError: it is not as a launcher writes it.
        """
        try:
            return msgspec.json.decode(text, type=cls)
        except msgspec.DecodeError as error:
            raise SpecError(f"{HANDED_OVER} is not as dtrain writes it: {error}") from None


def read_tls_file(path: Path, private: bool = False) -> bytes:
    """Return what a file of TLS holds, not yet checked.

    Raises:
        SpecError: it cannot be read, or others can read it and it is `private`.
    """
    try:
        descriptor = open_regular(path)
        try:
            found = os.fstat(descriptor)
            mode = stat.S_IMODE(found.st_mode)
            if private and mode & (_FORBIDDEN_OF_ROOT if 0 == found.st_uid != os.getuid() else _FORBIDDEN):
                raise SpecError(f"{path}: others can read this key (mode {mode:04o}); run `chmod 600 {path}`")
            return read_whole(descriptor, LONGEST_BYTES, path)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise SpecError(f"{path}: cannot read this file of TLS: {error.strerror}") from None
