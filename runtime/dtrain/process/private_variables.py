"""The variables that a task alone may see: its run's secret, and a spec whose URLs hold passwords.

Children, libraries and crash reports see `os.environ`; these stay out of it. A forked task gets them through
its fork server's pipe, and an executed one in a memory without a name, whose descriptor is in
DTRAIN_PRIVATE_FD. A secret that a user has exported leaves the environment as soon as it is read.
"""

import os
from collections.abc import Mapping

from dtrain.errors import SpecError

SECRET = "DTRAIN_SECRET"
DESCRIPTOR = "DTRAIN_PRIVATE_FD"
_BYTES_MAX = 1 << 24
_kept: dict[str, str] = {}
"""The private variables of this process."""


def keep(variables: Mapping[str, str]) -> None:
    """Give this process its private variables."""
    _kept.update(variables)


def own_environment() -> dict[str, str]:
    """Return this process's variables with the private ones, which are in `os.environ` no more."""
    if secret := os.environ.pop(SECRET, None):
        _kept[SECRET] = secret
    if (descriptor := os.environ.pop(DESCRIPTOR, None)) is not None:
        _kept.update(_taken(descriptor))
    return {**os.environ, **_kept}


def handed_over(variables: Mapping[str, str]) -> int:
    """Return a new descriptor of a memory with these variables, for a child that is let inherit it."""
    import msgspec  # not above: a launch reads the names of variables before it imports anything

    descriptor = os.memfd_create("dtrain")
    with os.fdopen(os.dup(descriptor), "wb") as memory:
        memory.write(msgspec.json.encode(variables))
    return descriptor


def _taken(descriptor: str) -> dict[str, str]:
    """Read what `handed_over` has written, and close it."""
    import msgspec

    try:
        number = int(descriptor)
        variables = msgspec.json.decode(os.pread(number, _BYTES_MAX, 0), type=dict[str, str])
        os.close(number)
    except (ValueError, OverflowError, OSError) as error:  # msgspec's errors are ValueErrors
        raise SpecError(f"{DESCRIPTOR} in the environment is not as dtrain sets it: {error}") from None
    return variables
