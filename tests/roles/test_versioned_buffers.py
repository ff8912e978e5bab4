"""Versions of a server's values: what a reader holds stays as it is, and there are no more copies than
different readings.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dtrain.parameters.versions import BufferAllocator, VersionedBuffers


class CountingAllocator(BufferAllocator):
    """Remembers who reads what, and how many places were ever made."""

    def __init__(self):
        self.readers = {}
        self.places = 1

    def another(self, values):
        self.places += 1
        return super().another(values)

    def in_use(self, values):
        return any(reading[0] is values[0] for reading, _ in self.readers.values())


def advance(published, version):
    place = published.next_place()
    for array in place:
        array[...] = version
    published.publish(place)


@pytest.mark.parametrize("groups", [1, 3])
def test_unread_values_are_changed_in_place(groups):
    published = VersionedBuffers([np.zeros(4) for _ in range(groups)], BufferAllocator())
    first = published.newest
    advance(published, 1)
    assert published.newest is first
    assert all(np.all(array == 1) for array in first)


def test_a_server_without_variables_has_versions_too():
    published = VersionedBuffers([], BufferAllocator())
    advance(published, 1)
    published.disconnected(published.newest)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.sampled_from(["read", "advance", "lose"]), st.integers(0, 3)), max_size=60))
def test_what_is_read_never_changes(steps):
    allocator = CountingAllocator()
    published = VersionedBuffers([np.zeros(3)], allocator)
    lost, version, losses = [], 0, 0
    for step, reader in steps:
        match step:
            case "read":
                allocator.readers[reader] = published.newest, version
            case "lose" if reader in allocator.readers:
                reading, seen = allocator.readers.pop(reader)
                published.disconnected(reading)
                lost.append((reading, seen))
                losses += 1
            case "advance":
                version += 1
                advance(published, version)
        for reading, seen in [*allocator.readers.values(), *lost]:
            assert np.all(reading[0] == seen)
        assert np.all(published.newest[0] == version)
    assert allocator.places <= 4 + 2 + losses
