"""A line of dtrain's own on stderr, where no console draws."""

import contextlib
import sys

from dtrain.formats.masked_urls import masked
from dtrain.process.plain_text import plain


def say(text: str) -> None:
    """Print a line, plainly and without the secrets of URLs; a reader that has gone is no error."""
    with contextlib.suppress(OSError):
        print(plain(f"dtrain: {masked(text)}"), file=sys.stderr, flush=True)  # noqa: T201
