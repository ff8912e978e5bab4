"""A run's certificate authority, for which the package `cryptography` is loaded only when one is needed."""

import secrets
from typing import TYPE_CHECKING

from dtrain.errors import SpecError

if TYPE_CHECKING:
    from dtrain_cli.certificates.by_library import Authority

AUTHORITY_DAYS = 365
_NO_LIBRARY = (
    "making certificates needs the package cryptography: `pip install -e '.[tls]'` in dtrain's clone"
)


def make_authority(run_id: str, days: int = AUTHORITY_DAYS) -> "Authority":
    """Make the authority of a run.

    Raises:
        SpecError: the package `cryptography` is missing.
    """
    # No two authorities may have one name: a ca.crt that holds both would be searched by it.
    name = f"dtrain {run_id.encode('ascii', 'replace').decode()[:40]} {secrets.token_hex(4)}"
    return _library().make(name, days)


def read_authority(certificate: bytes, key: bytes) -> "Authority":
    """Read an authority that was made before.

    Raises:
        SpecError: the package `cryptography` is missing, or these are no authority.
    """
    return _library().read(certificate, key)


def _library() -> "type[Authority]":
    try:
        from dtrain_cli.certificates.by_library import Authority
    except ModuleNotFoundError:
        raise SpecError(_NO_LIBRARY) from None
    return Authority
