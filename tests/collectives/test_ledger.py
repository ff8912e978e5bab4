"""The ledger: what its writer has written is read whole or not at all, in every order of writing and reading."""

import os
import random

import numpy as np
import pytest
from row_by_row import every_row

from dtrain.collectives.ledger import HEAD_BYTES, Ledger
from dtrain.errors import InputError, PeerRefusedError, SharedMemoryError
from dtrain.wire.one_host.shared_memory import GrowingMemory


class Words(list):
    """One word; `before_next` is called before the next write to it, as often as it is set."""

    before_next = None

    def __setitem__(self, place, word):
        call, self.before_next = self.before_next, None
        if call is not None:
            call()
        super().__setitem__(place, word)


def views(nbytes, count=2):
    data, words = np.zeros(HEAD_BYTES + nbytes, np.uint8), Words([0])
    return [Ledger(data, words, lambda start, stop: None) for _ in range(count)], words


def test_the_newest_entry_of_a_name_counts_and_an_empty_one_ends_it():
    (writer, reader), _ = views(4096)
    writer.write({"a": b"1", "b": b"2"})
    assert reader.read() == {"a": b"1", "b": b"2"}
    assert reader.read() == {}
    writer.write({"a": b"3"})
    writer.write({"b": b""})
    assert reader.read() == {"a": b"3", "b": b""}
    assert reader.entries == writer.entries == {"a": b"3"}


def test_entries_are_read_in_the_order_in_which_they_were_first_written():
    (writer, reader), _ = views(4096)
    names = [f"name {number}" for number in range(20)]
    writer.write(dict.fromkeys(names, b"1"))
    assert list(reader.read()) == names
    writer.write(dict.fromkeys(reversed(names), b""))
    assert list(reader.read()) == names


def test_a_writer_that_dies_before_the_word_has_written_nothing():
    (writer, reader), words = views(4096)
    writer.write({"a": b"1"})

    def die():
        raise KeyboardInterrupt

    words.before_next = die
    with pytest.raises(KeyboardInterrupt):
        writer.write({"a": b"2", "b": b"2"})
    assert reader.read() == {"a": b"1"}
    following = Ledger(reader._data, words, lambda start, stop: None)
    following.write({"b": b"3"})
    assert following.entries == {"a": b"1", "b": b"3"}
    assert reader.read() == {"b": b"3"}


@every_row("seed", range(20))
def test_readers_of_any_pace_find_what_was_written(seed):
    chance = random.Random(seed)
    (writer, *readers), _ = views(2 * chance.choice([200, 400, 3000]), count=4)
    expected = {}
    for _ in range(200):
        new = {chance.choice("abcd"): bytes(chance.randrange(20)) for _ in range(chance.randrange(1, 3))}
        writer.write(new)
        expected = {name: body for name, body in {**expected, **new}.items() if body}
        for reader in chance.sample(readers, chance.randrange(3)):
            known = dict(reader.entries)
            news = reader.read()
            assert reader.entries == expected
            assert {name: body for name, body in {**known, **news}.items() if body} == expected


def test_what_finds_no_room_is_refused_and_changes_nothing_for_others():
    (writer, reader), _ = views(400)
    writer.write({"a": b"1"})
    with pytest.raises(InputError, match="'weights' most of them"):
        writer.write({"weights": bytes(300)})
    assert reader.read() == {"a": b"1"}


def test_where_the_machine_has_no_memory_an_entry_is_refused_before_a_byte_of_it_is_written():
    """The first write to a page that was not taken would end the process by SIGBUS."""
    data, words, taken = np.zeros(HEAD_BYTES + 8192, np.uint8), Words([0]), np.zeros(HEAD_BYTES + 8192, bool)

    def need(start, stop):
        if stop - start > 1000:
            raise SharedMemoryError("no memory")
        taken[start:stop] = True

    writer = Ledger(data, words, need)
    writer.write({"a": b"1"})
    assert taken[data != 0].all()
    before = data.copy()
    with pytest.raises(SharedMemoryError):
        writer.write({"b": b"1" * 2000})
    assert data.tobytes() == before.tobytes()
    assert Ledger(data, words, need).read() == {"a": b"1"}


def test_growing_memory_takes_pages_as_they_are_needed_and_two_mappings_share_them():
    memory = GrowingMemory.make(1 << 40)
    other = GrowingMemory.received(os.dup(memory.fd))
    memory.need(1 << 39, (1 << 39) + 10)
    memory[1 << 39] = 7
    assert other[1 << 39] == 7
    assert os.fstat(memory.fd).st_blocks * 512 <= 1 << 20


def test_growing_memory_refuses_what_could_shrink():
    reading, writing = os.pipe()
    os.close(writing)
    with pytest.raises(PeerRefusedError, match="may shrink"):
        GrowingMemory.received(reading)
