"""Files on a web server: what is asked of it, and what becomes of it when it fails."""

import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from dtrain.cluster import ClusterSpec, TaskId
from dtrain.config import RunSpec, WaitSection
from dtrain.data import Dataset, NumpyDataset, TextLineDataset, TFRecordDataset, TFRecordWriter, list_files
from dtrain.data.record_index import index_files
from dtrain.data.record_index.addressing import addressed
from dtrain.data.stores import opening, remote
from dtrain.errors import InputError, InvalidArgumentError
from dtrain.process.assignment import TaskAssignment
from dtrain.strategies import choice
from dtrain.strategies.single import SingleStrategy

RECORD_BYTES = 1016  # and 16 around them


class Server:
    """A server of one file, which knows ranges unless it is told otherwise, and counts.

    Attributes:
        data: of the file.
        asked: the ranges that were asked for, beginning and end.
        failures: how many of the next answers break off in the midst.
        knows_ranges: whether it reads the header Range.
        status: in the place of every answer; None: the right one.
    """

    def __init__(self, data):
        self.data, self.version = data, 1
        self.asked, self.failures, self.knows_ranges, self.status = [], 0, True, None
        handler = type("Handler", (_Handler,), {"files": self})
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._http.daemon_threads = True
        self._http.handle_error = lambda *_: None  # who asked has gone
        self.port = self._http.server_port
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def url(self, name="train.tfrecord", user=""):
        return f"http://{user}127.0.0.1:{self.port}/{name}"

    def close(self):
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


class _Handler(BaseHTTPRequestHandler):
    files = None

    def do_GET(self):
        files = self.files
        if files.status is not None:
            self.send_error(files.status)
            return
        match = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if not match or not files.knows_ranges:
            self._answer(200, files.data, {})
            return
        start, stop = int(match[1]), min(int(match[2]) + 1, len(files.data))
        files.asked.append((start, stop))
        about = f"bytes {start}-{stop - 1}/{len(files.data)}"
        self._answer(206, files.data[start:stop], {"Content-Range": about, "ETag": f'"{files.version}"'})

    def _answer(self, status, data, headers):
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.files.failures:
            self.files.failures -= 1
            data = data[: len(data) // 2]
        self.wfile.write(data)

    def log_message(self, *_):
        pass


@pytest.fixture(autouse=True)
def alone(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("DTRAIN_RUN_DIR", raising=False)
    monkeypatch.setattr(remote, "FIRST_PAUSE_S", 0.01)
    index_files._known.clear()
    opening._opened.clear()


def records(tmp_path, count):
    with TFRecordWriter(tmp_path / "records") as writer:
        for number in range(count):
            writer.write(b"%07d" % number + bytes(RECORD_BYTES - 7))
    return (tmp_path / "records").read_bytes()


@pytest.fixture
def server(tmp_path):
    server = Server(records(tmp_path, 4000))
    yield server
    server.close()


def numbers(elements):
    return [int(record[:7]) for record in elements]


def test_near_records_of_a_batch_come_by_one_request_and_the_file_is_scanned_once(server, tmp_path):
    node = addressed(TFRecordDataset(server.url()).node)
    assert node.cardinality == 4000
    assert sum(end - begin for begin, end in server.asked) < len(server.data) + 1000
    assert len(server.asked) < 12  # blocks that grow, not one request for each record
    server.asked.clear()
    near = np.array([30, 7, 8, 9, 100, 30])
    assert numbers(node.each(near, (0,))) == near.tolist()
    assert server.asked == [(7 * 1032, 101 * 1032)]
    server.asked.clear()
    far = np.array([3000, 0, 1500, 1501])
    assert numbers(node.each(far, (0,))) == far.tolist()
    assert sorted(server.asked) == [(n * 1032, m * 1032) for n, m in ((0, 1), (1500, 1502), (3000, 3001))]
    (index,) = (tmp_path / "cache" / "dtrain" / "data_index").glob("*.dtidx")
    assert index.name.startswith("train.tfrecord-")
    index_files._known.clear()  # as another task of this host
    server.asked.clear()
    assert addressed(TFRecordDataset(server.url()).node).cardinality == 4000
    assert len(server.asked) == 1  # the facts of the file, and none of its records


def test_blocks_that_are_shuffled_are_read_as_blocks(server):
    dataset = TFRecordDataset(server.url()).shuffle(500, seed=1, block=250).batch(500)
    addressed(TFRecordDataset(server.url()).node)
    server.asked.clear()
    batches = [numbers(batch) for batch in dataset.take(2)]
    assert len(server.asked) <= 2 * 2 * 2 + 1  # two blocks of 250 a batch, in pieces
    assert len({number // 250 for number in batches[0]}) == 2


def test_a_file_is_read_from_the_front_in_blocks(server, monkeypatch):
    monkeypatch.setattr(remote, "PIECE_BYTES", 100_000)
    assert numbers(TFRecordDataset(server.url())) == list(range(4000))
    sizes = [end - begin for begin, end in server.asked]
    assert max(sizes) == 100_000
    assert sum(sizes) < len(server.data) + 1000


def test_lines_and_arrays(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(600_000.0).reshape(-1, 2))
    server = Server((tmp_path / "x.npy").read_bytes())
    try:
        rows = NumpyDataset(server.url("x.npy"))
        server.asked.clear()
        assert rows.shuffle(300_000, seed=2).batch(4).element_spec.dtype == "float64"
        (batch,) = Dataset(addressed(rows.skip(299_990).batch(10).node))
        assert batch[:, 0].tolist() == [2.0 * n for n in range(299_990, 300_000)]
        assert sum(end - begin for begin, end in server.asked) < 9_600_000 / 20  # headers, and ten rows
    finally:
        server.close()
    lines = Server(b"".join(b"%d\n" % n for n in range(1000)))
    try:
        dataset = TextLineDataset(lines.url("x.txt"))
        assert [int(line) for line in Dataset(addressed(dataset.node))] == list(range(1000))
        assert list(list_files(lines.url("x.txt"))) == [lines.url("x.txt")]
        with pytest.raises(InputError, match=r"a web server does not list its files: name each of them"):
            list_files(lines.url("*.txt"))
    finally:
        lines.close()


def test_an_answer_that_breaks_off_is_asked_for_again(server):
    node = addressed(TFRecordDataset(server.url()).node)
    server.asked.clear()
    server.failures = 2
    assert numbers(node.each(range(5, 9), (0,))) == [5, 6, 7, 8]
    assert server.asked == [(5 * 1032, 9 * 1032)] * 3


def test_a_server_that_dies_in_the_midst_is_named_with_the_place_and_without_its_password(
    server, monkeypatch
):
    url = server.url(user="me:s3cret@").replace("http://me:s3cret@", "http://") + "?X-Amz-Signature=s3cret"
    dataset = TFRecordDataset(url).batch(2)
    node = addressed(dataset.node)
    assert numbers(node.element(1, (0,))) == [2, 3]
    server.close()
    monkeypatch.setattr(remote, "_wait_s", 0.3)
    with pytest.raises(InputError) as told:
        node.element(2, (0,))
    said = str(told.value)
    assert f"127.0.0.1:{server.port}/train.tfrecord?***: bytes 4128 to 6192 cannot be read" in said
    assert "refused" in said
    assert re.search(r"asked \d+ times within \d+ s", said)
    assert "s3cret" not in said
    server.__init__(server.data)  # the fixture closes one that runs


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (404, "is not there: the server answers 404"),
        (403, "cannot be read: the server answers 403"),
        (503, r"the store was asked \d+ times within 0 s; the last answer: the server answers 503"),
    ],
)
def test_refusals_are_said_at_once_and_troubles_after_a_while(server, monkeypatch, status, message):
    monkeypatch.setattr(remote, "_wait_s", 0.1)
    server.status = status
    with pytest.raises(InputError, match=message):
        list(TFRecordDataset(server.url()))


def test_a_spec_says_how_long_a_store_is_asked_again(server, monkeypatch):
    monkeypatch.setattr(remote, "_wait_s", 60.0)
    cluster = ClusterSpec.from_lists(chief=["127.0.0.1:1"], ps=["127.0.0.1:2"])
    spec = RunSpec(wait=WaitSection(server_s=0.1))
    assignment = TaskAssignment(TaskId.parse("chief:0"), cluster, spec, "run")
    monkeypatch.setattr(TaskAssignment, "from_environment", lambda environment: assignment)
    monkeypatch.setattr(choice, "strategy_of", lambda assignment: SingleStrategy())
    choice._make({}, "dt.get_strategy()")
    server.status = 503
    with pytest.raises(InputError, match="within 0 s; the last answer: the server answers 503"):
        list(TFRecordDataset(server.url()))


def test_a_wait_for_a_store_is_said_once(server, monkeypatch, capsys):
    monkeypatch.setattr(remote, "SAID_AFTER_S", 0.0)
    node = addressed(TFRecordDataset(server.url() + "?sig=s3cret").node)
    server.failures = 3
    assert numbers([node.element(7, (0,))]) == [7]
    said = capsys.readouterr().err
    assert said.count("dtrain: waiting for the store of http://127.0.0.1:") == 1
    assert "s3cret" not in said


def test_a_server_without_ranges_is_refused_before_it_sends_the_file(server):
    server.knows_ranges = False
    with pytest.raises(
        InputError, match="gives whole files only: it ignores the header Range; copy the file"
    ):
        list(TFRecordDataset(server.url()))


def test_a_server_that_forgets_ranges_gives_no_wrong_records(server):
    node = addressed(TFRecordDataset(server.url()).node)
    server.knows_ranges = False
    with pytest.raises(InputError, match=r"bytes 7224 to 8256 cannot be read: .*gives whole files only"):
        node.element(7, (0,))


@pytest.mark.parametrize("shorter", [False, True])
def test_a_file_that_changes_under_a_run_is_named(server, shorter):
    node = addressed(TFRecordDataset(server.url()).node)
    assert numbers([node.element(7, (0,))]) == [7]
    server.version = 2
    if shorter:
        server.data = server.data[: 100 * 1032]
    with pytest.raises(InputError, match=r"train\.tfrecord: was changed while it was in use"):
        node.element(50, (0,))
    index_files._known.clear()  # as a new process
    opening._opened.clear()
    node = addressed(TFRecordDataset(server.url()).node)
    assert node.cardinality == (100 if shorter else 4000)


def test_damage_is_named_by_url_and_place(server):
    node = addressed(TFRecordDataset(server.url()).node)
    data = bytearray(server.data)
    data[9 * 1032 + 500] ^= 1
    server.data = bytes(data)
    with pytest.raises(
        InputError,
        match=rf"http://127\.0\.0\.1:\d+/train\.tfrecord: the data of the record at byte {9 * 1032}",
    ):
        node.element(9, (0,))


def test_no_files_match(tmp_path):
    with pytest.raises(InvalidArgumentError, match="no file matches"):
        list_files(str(tmp_path / "*"))
