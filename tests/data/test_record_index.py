"""Files that are addressed by number: the same rows in the same order as read from the front."""

import errno
import fcntl
import os
import threading
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from row_by_row import every_row

import dtrain as dt
from dtrain.data import Dataset, DatasetIterator, TextLineDataset, TFRecordDataset, TFRecordWriter
from dtrain.data.build_once import UnwritableError
from dtrain.data.readers.rows import TextLines, TfRecords
from dtrain.data.record_index import index_files
from dtrain.data.record_index.addressing import Turns, addressed, obstacles
from dtrain.data.record_index.index_files import index_of
from dtrain.data.sources import Slices
from dtrain.data.stores.local import OpenFile
from dtrain.errors import InputError, WaitTimeoutError
from dtrain.formats.tfrecord import masked_crc32c, masked_crc32c_of_words


@pytest.fixture(autouse=True)
def small_files_have_indexes(monkeypatch):
    monkeypatch.setattr(index_files, "INDEXED_BYTES_MIN", 0)
    monkeypatch.delenv("DTRAIN_RUN_DIR", raising=False)
    index_files._known.clear()


def write_records(path, records):
    with TFRecordWriter(path) as writer:
        for record in records:
            writer.write(record)
    return str(path)


def write_lines(path, lines):
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    return str(path)


def values(count, first=0):
    return [f"{first + number}".encode() for number in range(count)]


def indexed(dataset):
    node = addressed(dataset.node)
    assert node.addressable
    return Dataset(node)


def slowly(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


@pytest.mark.parametrize("length", [0, 1, 8, 17, 1024, 3000])
def test_checksums_are_those_of_the_definition(length):
    data = Random(length).randbytes(length)
    crc = slowly(data)
    assert masked_crc32c(data) == ((crc >> 15 | crc << 17) + 0xA282EAD8) % 2**32


def test_checksums_of_many_lengths_at_once():
    words = np.array([0, 1, 255, 2**32, 2**63, 2**64 - 1], np.uint64)
    expected = [masked_crc32c(int(word).to_bytes(8, "little")) for word in words]
    assert masked_crc32c_of_words(words).tolist() == expected


@settings(deadline=None, max_examples=80)
@given(st.lists(st.integers(0, 9), max_size=8), st.integers(1, 10), st.integers(1, 4))
def test_turns_are_those_of_an_interleave(lengths, cycle, block):
    parts = [[(number, row) for row in range(length)] for number, length in enumerate(lengths)]
    dataset = Dataset.range(len(lengths)).interleave(
        lambda number: Dataset(Slices(np.array(parts[number]).reshape(-1, 2))), cycle, block
    )
    turns = Turns(lengths, cycle, block)
    expected = [tuple(row.tolist()) for row in dataset]
    assert [turns.at(place) for place in range(turns.total)] == expected
    assert [turns.at(place) for place in reversed(range(turns.total))] == expected[::-1]


PIPELINES = {
    "as they are": lambda rows: rows,
    "mapped and batched": lambda rows: rows.map(int).batch(4),
    "shuffled by a buffer": lambda rows: rows.shuffle(5, seed=1).batch(3),
    "shuffled as a whole": lambda rows: rows.shuffle(1000, seed=1),
    "repeated": lambda rows: rows.map(int).shuffle(7).repeat(3).batch(5),
    "part of them": lambda rows: rows.skip(2).shard(3, 1).take(9),
    "filtered": lambda rows: rows.map(int).filter(lambda n: n % 3 > 0).shuffle(4).batch(4),
    "beside each other": lambda rows: Dataset.zip((rows, rows.map(int).skip(1))).batch(2),
    "one after another": lambda rows: rows.concatenate(rows.take(3)),
    "cached": lambda rows: rows.map(int).cache().shuffle(9),
    "padded": lambda rows: rows.map(lambda row: np.arange(int(row) % 4)).padded_batch(3),
}


@every_row("pipeline", PIPELINES)
@every_row("kind", ["records", "lines"])
def test_an_index_changes_no_order(tmp_path, kind, pipeline):
    lengths, names = [7, 0, 12, 5], []
    for number, length in enumerate(lengths):
        rows = values(length, first=100 * number)
        write = write_records if kind == "records" else write_lines
        names.append(write(tmp_path / f"{number}", rows))
    reader = TFRecordDataset if kind == "records" else TextLineDataset
    for reads in (None, 3):
        dataset = PIPELINES[pipeline](reader(names, num_parallel_reads=reads))
        for iteration in ((0,), (2,)):
            expected = [repr(each) for each in dataset.node.iterate(iteration)]
            node = addressed(dataset.node)
            assert node.cardinality == len(expected)
            assert [repr(node.element(k, iteration)) for k in range(len(expected))] == expected
            late = DatasetIterator(dataset.node, iteration, len(expected) // 2)
            assert [repr(each) for each in late] == expected[len(expected) // 2 :]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        [f"{n}" for n in range(4)] + [f"{n}.dtidx" for n in range(4)]
    )


@pytest.mark.parametrize("cycle", [1, 2, 5])
def test_names_may_come_in_another_order_in_each_iteration(tmp_path, cycle):
    names = [write_lines(tmp_path / f"{n}.txt", values(n + 2, 10 * n)) for n in range(4)]
    dataset = (
        Dataset.from_tensor_slices(names)
        .shuffle(4, seed=3)
        .interleave(lambda name: TextLineDataset(name).map(int).shuffle(3), cycle, 2)
        .batch(3)
    )
    node = addressed(dataset.node)
    streams = [[each.tolist() for each in dataset.node.iterate((past,))] for past in range(3)]
    assert streams == [[node.element(k, (past,)).tolist() for k in range(5)] for past in range(3)]
    assert streams[0] != streams[1]


def test_a_large_shuffle_has_one_order_with_and_without_an_index(tmp_path):
    count = (1 << 16) + 3
    name = write_lines(tmp_path / "x", values(count))
    for buffer in (count - 1, count, count + 1):
        dataset = TextLineDataset(name).shuffle(buffer, seed=2)
        assert list(dataset.take(2000)) == list(indexed(dataset).take(2000))
    assert {int(row) // 1000 for row in TextLineDataset(name).shuffle(1000, block=1000).take(1000)} == {
        int(next(iter(TextLineDataset(name).shuffle(1000, block=1000)))) // 1000
    }


@pytest.mark.parametrize(
    ("build", "named"),
    [
        (lambda name: TFRecordDataset(name, "GZIP"), "compressed as a whole .GZIP."),
        (lambda name: Dataset.from_generator(lambda: range(3)).map(lambda x: x), "from_generator"),
        (lambda name: TextLineDataset(name).shuffle(3).filter(len), "filter after a shuffle"),
        (lambda name: TextLineDataset(name).take_while(len), "take_while"),
        (
            lambda name: Dataset.from_tensors(name).repeat().interleave(TextLineDataset, 1),
            "names without end",
        ),
        (
            lambda name: Dataset.from_tensor_slices([name] * 3).shuffle(3).take(2).flat_map(TextLineDataset),
            "other files",
        ),
        (lambda name: TextLineDataset(name).repeat().shuffle(3), "repeat last"),
    ],
)
def test_what_cannot_be_addressed_is_named_and_left_as_it_is(tmp_path, build, named):
    dataset = build(write_lines(tmp_path / "x", values(3)))
    assert addressed(dataset.node) is dataset.node
    (found,) = obstacles(dataset.node)
    assert np.char.count(found, named.replace(".GZIP.", "(GZIP)"))
    assert not list(tmp_path.glob("*.dtidx"))


def test_an_index_is_built_once_and_used_again(tmp_path, monkeypatch):
    name = write_records(tmp_path / "x", values(20))
    first = index_of(name, TfRecords(""))
    assert first.kept_at == tmp_path / "x.dtidx"
    index_files._known.clear()
    monkeypatch.setattr(TfRecords, "scan", None)
    assert index_of(name, TfRecords("")).offsets.tolist() == first.offsets.tolist()


@pytest.mark.parametrize("damage", ["cut", "other kind", "other bytes", "longer", "empty"])
def test_an_index_of_something_else_is_built_anew(tmp_path, damage):
    name = write_lines(tmp_path / "x", values(20))
    index = tmp_path / "x.dtidx"
    index_of(name, TextLines())
    data = index.read_bytes()
    if damage == "other kind":
        data = data.replace(b"lines", b"pages")
    index.write_bytes(
        {
            "cut": data[:-8],
            "other kind": data,
            "other bytes": data[9:],
            "longer": data + bytes(8),
            "empty": b"",
        }[damage]
    )
    index_files._known.clear()
    assert len(index_of(name, TextLines())) == 20
    assert len(index.read_bytes()) == len(data)


def test_a_file_that_was_replaced_between_two_runs_is_indexed_anew(tmp_path):
    name = write_lines(tmp_path / "x", values(9))
    assert len(index_of(name, TextLines())) == 9
    stamp = (tmp_path / "x").stat().st_mtime_ns
    write_lines(tmp_path / "x", [b"0\n", *values(7, 1)])  # of the same length, and by its time not newer
    os.utime(name, ns=(stamp, stamp))
    index_files._known.clear()
    assert [int(row or b"-1") for row in indexed(TextLineDataset(name))] == [0, -1, *range(1, 8)]


def test_a_file_that_changes_under_a_run_is_named(tmp_path):
    name = write_lines(tmp_path / "x", values(9))
    dataset = indexed(TextLineDataset(name))
    with open(name, "ab") as file:
        file.write(b"more\n")
    with pytest.raises(InputError, match=r"x: was changed while it was in use: it has 23 bytes, and had 18"):
        dataset.node.element(0, (0,))


def test_offsets_beyond_the_file_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(index_files, "CHECKED_OFFSETS", 2)  # the first and the last one
    name = write_lines(tmp_path / "x", values(9))
    index_of(name, TextLines())
    index = tmp_path / "x.dtidx"
    data = bytearray(index.read_bytes())
    data[-16:-8] = (2**40).to_bytes(8, "little")
    index.write_bytes(data)
    index_files._known.clear()
    with pytest.raises(InputError, match="the index is damaged: remove it"):
        indexed(TextLineDataset(name)).node.element(8, (0,))


@pytest.mark.parametrize(
    ("place", "message"),
    [
        (lambda starts: starts[3] + 2, "the length of the record at byte {3} is damaged"),
        (lambda starts: starts[5] + 9, "the length of the record at byte {5} is damaged"),
    ],
)
def test_a_damaged_length_is_named_when_the_index_is_built(tmp_path, place, message):
    records = [bytes([number]) * (40 + number) for number in range(9)]
    name = write_records(tmp_path / "x", records)
    starts = index_of(name, TfRecords("")).offsets.tolist()
    data = bytearray((tmp_path / "x").read_bytes())
    data[place(starts)] ^= 1
    (tmp_path / "x").write_bytes(data)
    with pytest.raises(InputError, match=message.format(*starts)):
        index_of(name, TfRecords(""))


def test_damaged_data_and_cut_files_are_named_by_their_offset(tmp_path):
    name = write_records(tmp_path / "x", [bytes(100)] * 9)
    data = bytearray((tmp_path / "x").read_bytes())
    start = 4 * 116
    data[start + 50] ^= 1
    (tmp_path / "x").write_bytes(data)
    dataset = indexed(TFRecordDataset(name))
    assert dataset.node.element(3, (0,)) == bytes(100)
    with pytest.raises(InputError, match=f"x: the data of the record at byte {start} are damaged"):
        dataset.node.element(4, (0,))
    (tmp_path / "x").write_bytes(data[: 8 * 116 + 20])
    with pytest.raises(InputError, match=f"x: the file ends inside the record at byte {8 * 116}"):
        indexed(TFRecordDataset(name))
    (tmp_path / "x").write_bytes(data[: 8 * 116 + 10])  # as TensorFlow: an end inside a header is none
    assert indexed(TFRecordDataset(name)).cardinality() == 8


def test_large_records_are_hopped_over(tmp_path, monkeypatch):
    name = write_records(tmp_path / "x", [bytes(300_000)] * 5)
    read = []
    whole = OpenFile.read
    monkeypatch.setattr(OpenFile, "read", lambda self, start, n: read.append(n) or whole(self, start, n))
    index_of(name, TfRecords(""))
    assert sum(read) < 5 * 300_000 / 2


def test_without_room_nothing_half_written_is_left(tmp_path, monkeypatch):
    name = write_lines(tmp_path / "data", values(9))

    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(index_files.os, "fsync", full)
    with pytest.warns(
        UserWarning, match="cannot be kept in .*: No space left on device; it is held in memory"
    ):
        assert len(index_of(name, TextLines())) == 9
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_beside_read_only_data_the_run_directory_keeps_the_index(tmp_path, monkeypatch):
    (tmp_path / "run").mkdir()
    name = write_lines(tmp_path / "data", values(9))
    monkeypatch.setenv("DTRAIN_RUN_DIR", str(tmp_path / "run"))
    build = index_files.build_once

    def refuse_beside(path, *arguments, **named):
        if path.parent == tmp_path:
            raise UnwritableError(errno.EROFS, "Read-only file system")
        return build(path, *arguments, **named)

    monkeypatch.setattr(index_files, "build_once", refuse_beside)
    index = index_of(name, TextLines())
    assert index.kept_at.parent == tmp_path / "run" / index_files.FOLDER
    index_files._known.clear()
    monkeypatch.setattr(TextLines, "scan", None)
    assert len(index_of(name, TextLines())) == 9


def held_by_a_builder(path):
    """The open file of a builder of `path`, which lives until the file is closed."""
    held = os.open(path.with_name(f".{path.name}.0123456789ab"), os.O_RDWR | os.O_CREAT)
    fcntl.flock(held, fcntl.LOCK_EX)
    return held


def test_of_two_leaders_one_builds_the_index(tmp_path, monkeypatch):
    name = write_lines(tmp_path / "x", values(1000))
    held = held_by_a_builder(
        tmp_path / "x.dtidx"
    )  # both of them wait before one begins; each has a lock of its own
    scanned, built = [], []
    scan = TextLines.scan
    monkeypatch.setattr(TextLines, "scan", lambda self, *args: scanned.append(1) or scan(self, *args))
    leaders = [threading.Thread(target=lambda: built.append(index_of(name, TextLines()))) for _ in range(2)]
    for leader in leaders:
        leader.start()
    os.close(held)
    for leader in leaders:
        leader.join(60)
    assert [len(index) for index in built] == [1000, 1000]
    assert len(scanned) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x", "x.dtidx"]


def test_a_wait_for_another_task_ends_and_names_it(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("dtrain.process.file_lock.SAID_AFTER_S", 0.0)
    name = write_lines(tmp_path / "x", values(9))
    held = held_by_a_builder(tmp_path / "x.dtidx")
    message = rf"waited for process {os.getpid()} to build the index of .*x, .* for 0 s; stop that process"
    with pytest.raises(WaitTimeoutError, match=message):
        index_of(name, TextLines(), wait_s=0.05)
    os.close(held)
    assert f"dtrain: waiting for process {os.getpid()} to build the index" in capsys.readouterr().err
    assert len(index_of(name, TextLines(), wait_s=0.05)) == 9


def test_only_the_rows_of_a_batch_are_read_and_parsed(tmp_path):
    name = write_lines(tmp_path / "x", values(10_000))
    parsed = []
    dataset = TextLineDataset(name).map(lambda row: parsed.append(row) or int(row)).shuffle(10_000).batch(10)
    late = DatasetIterator(dataset.node, (0,), 900)
    next(late)
    assert len(parsed) == 10


def test_patterns_match_no_indexes(tmp_path):
    names = [write_lines(tmp_path / f"{n}", values(3)) for n in range(2)]
    indexed(TextLineDataset(names))
    assert list(Dataset.list_files(f"{tmp_path}/*", shuffle=False)) == names


def test_fit_knows_the_length_of_an_epoch_of_files(tmp_path):
    numbers = np.arange(40, dtype=np.float32).reshape(20, 2) / 40
    name = write_lines(tmp_path / "x", [f"{a},{b}".encode() for a, b in numbers])

    def parse(line):
        a, b = line.split(b",")
        return np.array([float(a)], np.float32), np.array([float(b)], np.float32)

    def trained(data):
        model = dt.Sequential([dt.layers.Dense(1, input_shape=(1,), kernel_initializer="ones")])
        model.compile(optimizer="sgd", loss="mse")
        return model.fit(data, epochs=2, verbose=0).history["loss"]

    from_file = TextLineDataset(name).map(parse).filter(lambda a, b: b < 0.9).shuffle(50).batch(5)
    kept = numbers[numbers[:, 1] < 0.9]
    from_memory = Dataset.from_tensor_slices((kept[:, :1], kept[:, 1:])).shuffle(50).batch(5)
    found, expected = trained(from_file), trained(from_memory)
    assert len(kept) < 20
    assert np.allclose(found, expected, rtol=1e-5)
