"""Which seeds a test of chance runs: DTRAIN_CHAOS=N the first N, DTRAIN_CHAOS=FROM:TO those."""

import os


def seeds(usual):
    """Return the seeds that the environment asks for, or as many as are usual."""
    first, _, end = os.environ.get("DTRAIN_CHAOS", str(usual)).rpartition(":")
    return range(int(first or 0), int(end))
