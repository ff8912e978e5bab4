"""Which seeds a test of chance runs: DTRAIN_CHAOS=N the first N, DTRAIN_CHAOS=FROM:TO those; else the few of every
day.
"""

import os


def seeds(*usual):
    """Return the seeds that the environment asks for, or the usual ones."""
    if "DTRAIN_CHAOS" not in os.environ:
        return usual
    first, _, end = os.environ["DTRAIN_CHAOS"].rpartition(":")
    return range(int(first or 0), int(end))
