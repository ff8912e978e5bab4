"""The bytes that compressed data may grow to."""

FREE_BYTES = 64 << 20
"""What any file may grow to."""
RATIO_MAX = 100
"""Times that a larger file may grow: text shrinks to a tenth, images to a half; what was made to fill memory,
to a thousandth.
"""


def room_for(nbytes: int) -> int:
    """Return how many bytes a compressed file of `nbytes` may grow to."""
    return max(FREE_BYTES, nbytes * RATIO_MAX)
