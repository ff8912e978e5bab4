"""A file as a store describes it, and a store's refusal."""

from dataclasses import dataclass


class RefusedError(OSError):
    """A store says that it will not give a file; to ask again is of no use."""


@dataclass(frozen=True)
class Found:
    """A file as its store describes it.

    Attributes:
        nbytes: its size.
        version: text that changes with the file: an etag, or when it was changed last; may be empty.
    """

    nbytes: int
    version: str
