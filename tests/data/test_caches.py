"""Elements kept by cache() and snapshot(): computed once, read by number, never those of another pipeline."""

import errno
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dtrain.data import (
    Dataset,
    DatasetIterator,
    TextLineDataset,
    TFRecordDataset,
    TFRecordWriter,
    build_once,
    cache_file,
)
from dtrain.data.record_index.addressing import addressed, obstacles
from dtrain.errors import InputError, WaitTimeoutError

ROWS = 50
LINES = tuple(f"{number}".encode() for number in range(ROWS))


@pytest.fixture
def file(tmp_path):
    (tmp_path / "kept").mkdir()
    return tmp_path / "kept" / "train.cache"


@pytest.fixture
def lines(tmp_path):
    path = tmp_path / "lines"
    path.write_bytes(b"".join(line + b"\n" for line in LINES))
    return path


def numbers():
    return Dataset.from_generator(lambda: iter(range(ROWS)))


def logging(path):
    """A function that notes each call in a file, so that calls of all processes are counted."""
    name = str(path)

    def noted(value):
        with open(name, "a") as log:
            log.write("x")
        return value

    return noted


def values(dataset):
    return [int(value) for value in dataset]


def here(file):
    return sorted(path.name for path in file.parent.iterdir())


def kept(dataset, file):
    """Keep elements, and return them by number."""
    node = addressed(dataset.cache(file).node)
    assert node.addressable
    return node


def test_elements_are_computed_once_and_read_by_number(file, tmp_path):
    dataset = numbers().map(logging(tmp_path / "log")).cache(file)
    assert values(dataset) == values(dataset) == list(range(ROWS))
    node = addressed(numbers().map(logging(tmp_path / "log")).cache(file).batch(8).node)
    assert node.addressable
    assert node.cardinality == 7
    assert node.element(6, (3,)).tolist() == [48, 49]
    assert (tmp_path / "log").read_text() == "x" * ROWS
    assert here(file) == [file.name]


def test_an_iterator_goes_on_in_the_midst_without_what_comes_before(file, tmp_path):
    list(numbers().map(logging(tmp_path / "log")).cache(file))
    again = numbers().map(logging(tmp_path / "log")).cache(file).batch(10).repeat()
    iterator = DatasetIterator(again.node, position=8)
    assert [next(iterator)[0].item() for _ in range(3)] == [30, 40, 0]
    assert len((tmp_path / "log").read_text()) == ROWS


@pytest.mark.parametrize("keep", ["memory", "file", "snapshot"])
def test_the_order_of_the_first_iteration_stays(file, keep):
    shuffled = Dataset.range(ROWS).shuffle(ROWS, seed=3)
    first = values(shuffled)
    shuffled = Dataset.range(ROWS).shuffle(ROWS, seed=3)
    dataset = {
        "memory": shuffled.cache,
        "file": lambda: shuffled.cache(file),
        "snapshot": lambda: shuffled.snapshot(file),
    }[keep]()
    assert values(dataset) == values(dataset) == values(dataset.repeat(2).skip(ROWS)) == first
    filtered = dataset.filter(lambda number: number % 2)
    assert not obstacles(filtered.node)
    assert values(Dataset(addressed(filtered.node))) == [number for number in first if number % 2]


ELEMENTS = st.lists(
    st.tuples(
        st.one_of(st.binary(max_size=20), st.text(max_size=8)),
        st.lists(st.integers(-(2**40), 2**40), max_size=4),
        st.lists(st.binary(max_size=4), min_size=1, max_size=3),
    ),
    max_size=12,
)


@settings(deadline=None, max_examples=15)
@given(ELEMENTS, st.sampled_from([None, "GZIP"]), st.randoms())
def test_every_form_of_element_comes_back(tmp_path_factory, rows, compression, random):
    folder = tmp_path_factory.mktemp("snapshots")
    made = [
        {"text": text, "parts": (np.array(numbers, np.int64), np.array(names, object), np.float32(1))}
        for text, numbers, names in rows
    ]
    dataset = Dataset.from_generator(lambda: iter(made)).snapshot(folder, compression=compression)
    node = addressed(dataset.node)
    assert node.cardinality == len(made)
    asked = [random.randrange(len(made)) for _ in range(9)] if made else []
    for number, found in zip(asked, node.each(np.array(asked, np.int64), (0,)), strict=True):
        expected = made[number]
        assert found["text"] == expected["text"]
        for part, other in zip(found["parts"], expected["parts"], strict=True):
            np.testing.assert_array_equal(part, other)
            assert part.dtype == other.dtype


def test_a_changed_function_is_noticed(file):
    for factor in (2, 3, 2):
        dataset = numbers().map(lambda number, by=factor: number * by).cache(file)
        assert values(dataset) == [number * factor for number in range(ROWS)]
    assert here(file) == [file.name]


@pytest.mark.parametrize("compression", ["", "GZIP"])
def test_a_changed_file_is_noticed(file, tmp_path, compression):
    path = tmp_path / "records"
    for row in (b"first", b"other"):
        with TFRecordWriter(path, compression) as writer:
            writer.write(row)
        assert list(TFRecordDataset(str(path), compression).cache(file)) == [row]


def test_files_inside_an_interleave_are_noticed(file, lines, tmp_path):
    def read():
        names = Dataset.from_tensor_slices([str(lines), str(tmp_path / "more")])
        return values(names.interleave(TextLineDataset, cycle_length=2).cache(file))

    (tmp_path / "more").write_bytes(b"100\n")
    assert sorted(read()) == [*range(ROWS), 100]
    (tmp_path / "more").write_bytes(b"101\n")
    assert sorted(read()) == [*range(ROWS), 101]


def test_a_dataset_that_was_read_before_has_the_same_cache(file, lines, tmp_path):
    dataset = TextLineDataset(str(lines)).shuffle(9, seed=1).map(logging(tmp_path / "log"))
    first = values(dataset.cache(file))
    values(dataset)
    calls = len((tmp_path / "log").read_text())
    assert values(dataset.cache(file)) == first
    assert len((tmp_path / "log").read_text()) == calls


def test_snapshots_of_several_pipelines_lie_in_one_folder(file):
    for factor in (2, 3, 2):
        dataset = numbers().map(lambda number, by=factor: number * by).snapshot(file)
        assert values(dataset) == [number * factor for number in range(ROWS)]
    assert len(list(file.iterdir())) == 2


class Doubled:
    """A function of the program's own class, into which nobody can look."""

    def __call__(self, value):
        return value * 2


def test_a_pipeline_that_cannot_be_told_from_others_needs_a_name(file):
    with pytest.raises(InputError, match=r"train\.cache: the pipeline has an object of .*Doubled.*version="):
        list(numbers().map(Doubled()).cache(file))
    assert values(numbers().map(Doubled()).cache(file, version="1"))[:3] == [0, 2, 4]
    assert values(numbers().cache(file, version="1"))[:3] == [0, 2, 4]
    assert values(numbers().cache(file, version="2"))[:3] == [0, 1, 2]


def test_another_file_stays_as_it_is(file):
    file.write_text("a file of the user's\n")
    with pytest.raises(
        InputError, match=r"train\.cache: expected a file that cache, snapshot or save has written"
    ):
        list(numbers().cache(file))
    assert file.read_text() == "a file of the user's\n"


def test_a_dataset_without_end_is_refused(file):
    for keep in (Dataset.cache, Dataset.snapshot):
        with pytest.raises(InputError, match="before repeat"):
            keep(Dataset.range(ROWS).repeat(), file)


def test_an_error_of_the_source_is_its_own_and_nothing_is_left(file):
    def broken():
        yield 1
        raise OSError(errno.EIO, "the camera is off")

    with pytest.raises(OSError, match="the camera is off") as caught:
        list(Dataset.from_generator(broken).cache(file))
    assert not isinstance(caught.value, InputError)
    assert here(file) == []


def test_elements_are_plain_data(file):
    with pytest.raises(InputError, match="cache: expected arrays, text, bytes and numbers"):
        list(Dataset.random_access([Doubled()]).cache(file, version="1"))
    assert here(file) == []


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_one_sentence_and_nothing_is_left(file, monkeypatch, code):
    def full(descriptor, data):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(build_once.os, "write", full)
    with pytest.raises(InputError, match=rf"{file}: the cache cannot be written: {os.strerror(code)}"):
        list(numbers().cache(file))
    assert here(file) == []


def test_a_folder_that_is_not_there_is_one_sentence(tmp_path):
    with pytest.raises(InputError, match="No such file or directory"):
        list(numbers().cache(tmp_path / "none" / "train.cache"))
    assert values(numbers().snapshot(tmp_path / "none" / "here")) == list(range(ROWS))


@pytest.mark.parametrize("keep", [Dataset.cache, Dataset.snapshot])
def test_a_file_stays_within_its_bound(tmp_path, keep):
    def size(limit):
        place = tmp_path / f"{keep.__name__}{limit}"
        list(keep(numbers(), place, limit_bytes=limit))
        path = place if place.is_file() else next(place.iterdir())
        return path.stat().st_size

    enough = size(1 << 20) + cache_file.ROOM_OF_HEADER_BYTES
    assert size(enough) <= enough
    for limit in (1, 100, 1000, enough // 2):
        with pytest.raises(InputError, match=f"takes more than {limit} bytes"):
            size(limit)
        assert not [path for path in tmp_path.rglob("*") if path.name.startswith(".")]
    with pytest.raises(InputError, match="limit_bytes >= 1"):
        keep(numbers(), tmp_path / "x", limit_bytes=0)


def test_by_default_a_file_takes_half_of_the_free_disk(file, monkeypatch):
    monkeypatch.setattr(cache_file, "_free_bytes", lambda *_: 4000)
    with pytest.raises(InputError, match="takes more than 2000 bytes"):
        list(numbers().map(lambda number: np.zeros(100) + number).cache(file))


@pytest.mark.parametrize("streamed", [False, True])
def test_what_memory_has_no_room_for_is_computed_anew(streamed):
    calls = []

    def noted(number):
        calls.append(int(number))
        return np.full(1000, number, "u1")

    source = (numbers() if streamed else Dataset.range(ROWS)).map(noted)
    dataset = source.cache(limit_bytes=20_000)
    with pytest.warns(UserWarning, match="more than 20000 bytes"):
        first = [row[0] for row in dataset]
    assert first == [row[0] for row in dataset] == list(range(ROWS))
    again = len(calls) - ROWS
    assert again == ROWS if streamed else 30 <= again < ROWS


def test_a_damaged_element_is_named_by_file_and_offset(file):
    node = kept(Dataset.range(ROWS), file)
    data = bytearray(file.read_bytes())
    element = cache_file.encode_element(np.int64(20), "cache")
    offset = data.index(element) - 4
    data[offset + 5] ^= 1
    file.write_bytes(data)
    node = kept(Dataset.range(ROWS), file)
    assert node.element(19, (0,)) == 19
    with pytest.raises(InputError, match=rf"{file}: the cached element 20 at byte {offset} is damaged"):
        list(Dataset(node))


@settings(deadline=None, max_examples=15)
@given(st.data())
def test_a_damaged_file_is_an_error_or_built_anew_never_wrong(tmp_path_factory, data):
    file = tmp_path_factory.mktemp("kept") / "train.cache"
    list(Dataset.range(9).cache(file))
    whole = file.read_bytes()
    if data.draw(st.booleans()):
        file.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))])
    else:
        place = data.draw(st.integers(0, len(whole) - 1))
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
    try:
        found = values(Dataset.range(9).cache(file))
    except InputError as error:
        found = str(error)
    assert found == list(range(9)) or str(file) in found


BUILD = """
import sys, time
from dtrain.data import Dataset
def slow(number):
    with open(sys.argv[2], "a") as log:
        log.write("x")
    if number == 10 and sys.argv[3] == "hang":
        print("in the midst", flush=True)
        time.sleep(60)
    return number
print([int(n) for n in Dataset.range(50).map(slow).cache(sys.argv[1], version="1")] == list(range(50)))
"""


def test_a_builder_that_is_killed_leaves_nothing_that_counts(file, tmp_path):
    command = [sys.executable, "-c", BUILD, str(file), str(tmp_path / "log")]
    with subprocess.Popen([*command, "hang"], stdout=subprocess.PIPE, text=True) as builder:
        assert builder.stdout.readline() == "in the midst\n"
        remnant = here(file)
        builder.send_signal(signal.SIGKILL)
    assert len(remnant) == 1
    assert remnant[0].startswith(f".{file.name}.")
    assert not file.exists()
    assert values(Dataset.range(ROWS).cache(file, version="1")) == list(range(ROWS))
    assert here(file) == [file.name]


def test_processes_that_come_together_build_once(file, tmp_path):
    command = [sys.executable, "-c", BUILD, str(file), str(tmp_path / "log"), "go"]
    builders = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    assert [builder.communicate(timeout=60)[0] for builder in builders] == ["True\n"] * 3
    assert (tmp_path / "log").read_text() == "x" * ROWS
    assert here(file) == [file.name]


def test_a_builder_that_does_not_go_on_is_named(file, monkeypatch):
    monkeypatch.setattr(cache_file, "STALLED_S", 0.05)
    going_on, begun = threading.Event(), threading.Event()

    def slow():
        begun.set()
        going_on.wait(60)
        return iter([1])

    builder = threading.Thread(target=lambda: list(Dataset.from_generator(slow).cache(file, version="1")))
    builder.start()
    try:
        assert begun.wait(60)
        with pytest.raises(
            WaitTimeoutError, match=rf"waited for process {os.getpid()} to build the cache {file}"
        ):
            list(Dataset.range(3).cache(file, version="1"))
    finally:
        going_on.set()
        builder.join()
    assert values(Dataset.range(3).cache(file, version="1")) == [1]
    assert Path(file).is_file()


def test_a_url_is_refused():
    with pytest.raises(InputError, match="expected a file of this host"):
        numbers().cache("s3://bucket/train.cache")


@pytest.mark.parametrize("compression", ["SNAPPY", "zip"])
def test_another_compression_is_refused(file, compression):
    with pytest.raises(InputError, match="expected GZIP, AUTO or None"):
        numbers().snapshot(file, compression=compression)
