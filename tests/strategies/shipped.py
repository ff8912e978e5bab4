"""The strategies that dtrain ships, made without a process of their own."""

from dtrain.config import MirroredSection
from dtrain.strategies.mirrored import MirroredThreads


def mirrored(replicas):
    """Several replicas in threads, as `dt.MirroredStrategy` makes them."""
    return MirroredThreads(MirroredSection(replicas=replicas))
