"""Bounds of JSON that another program has written: its size, before it is decoded, and what stands in it.

Decoding makes objects: a list of two bytes (`[]`) takes 64 bytes of memory, and as much time as a long text.
"""

from typing import Annotated

import msgspec

JSON_BYTES_MAX = 16 << 20
"""Bytes of one text: a model with a vocabulary of a million words has about 12 MiB."""
CONTAINERS_MAX = 300_000
"""Lists and objects in one text. A safetensors header has three for each array, so this allows 100,000."""

Moment = Annotated[float, msgspec.Meta(ge=-1e10, le=1e10)]
"""A moment of a clock in seconds, perhaps by that of a machine which has begun later."""
Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
Text = Annotated[str, msgspec.Meta(max_length=3_000)]


def oversized(text: bytes) -> str | None:
    """Return what makes a text of JSON too large to decode; None if it is not."""
    if len(text) > JSON_BYTES_MAX:
        return f"it has {len(text)} bytes of JSON, expected at most {JSON_BYTES_MAX}"
    if (found := text.count(b"[") + text.count(b"{")) > CONTAINERS_MAX:
        return f"it has {found} lists and objects, expected at most {CONTAINERS_MAX}"
    return None
