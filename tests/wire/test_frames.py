"""Every message and any blocks come out as they went in; anything else is refused, without an exception of
another kind.
"""

import contextlib
import struct
import tracemalloc
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from row_by_row import every_row

from dtrain import messages
from dtrain.config import ClusterSection, RunSpec, ServerSection, training_section
from dtrain.errors import PeerRefusedError
from dtrain.messages import Pull, Push, rounds
from dtrain.messages.membership import TaskStatus
from dtrain.messages.replicas import Seat
from dtrain.state.batch_cut import Dealt
from dtrain.state.feed import DataFile, Feed
from dtrain.state.fit_state import Contents
from dtrain.state.stage_layout import ArrayTag
from dtrain.variables import DTYPE_BYTES
from dtrain.wire.frames import CHUNK_BYTES, UNKNOWN, Frame, FrameDecoder, Limits, encode

LIMIT = 1 << 20
KINDS = messages.AnyMessage.__args__
INTS = st.integers(-(2**63), 2**63 - 1)
TEXTS = st.text(max_size=20)
FLOATS = st.floats(allow_nan=False)
SEATS = st.builds(Seat, rank=INTS, task=TEXTS, address=TEXTS)
PLAIN = st.dictionaries(
    TEXTS, st.none() | st.booleans() | INTS | FLOATS | TEXTS | st.lists(INTS, max_size=3), max_size=3
)
TRIPLES = st.tuples(INTS, INTS, INTS)
SUMS = st.builds(messages.Sums, names=st.lists(TEXTS, max_size=3).map(tuple), totals=st.binary(max_size=40))
ROWS = st.dictionaries(INTS, PLAIN, max_size=2)
BATCHES = st.tuples(INTS, st.lists(INTS, max_size=3).map(tuple))
REFUSALS = st.sampled_from(list(messages.RefusalKind))
NUMBERS = st.dictionaries(TEXTS, INTS | FLOATS, max_size=3)
STATUSES = st.builds(
    TaskStatus,
    task=TEXTS,
    pid=INTS,
    host=TEXTS,
    step=st.none() | INTS,
    loss=st.none() | FLOATS,
    staleness_counts=st.dictionaries(INTS, INTS, max_size=3),
    evaluations=st.lists(NUMBERS, max_size=2),
    waiting_for=st.none() | TEXTS,
)
LINEAGES = st.builds(messages.Lineage, first_step=INTS, origin=INTS, rolled_back_steps=INTS)
STATES = st.builds(
    messages.FitState,
    **dict.fromkeys(("generation", "version", "max_steps", "steps_per_epoch", "first_epoch"), INTS),
    compiled=PLAIN,
    optimizer=PLAIN,
    plan=st.none() | PLAIN,
    lineage=LINEAGES,
    alone=st.booleans(),
    feed=st.builds(Feed, INTS, INTS, INTS, INTS, st.tuples(st.builds(DataFile, TEXTS, INTS, INTS)), INTS),
    dealt=st.builds(
        Dealt,
        INTS,
        INTS,
        st.lists(INTS, max_size=3).map(tuple),
        st.booleans(),
        st.lists(INTS, max_size=3).map(tuple),
    ),
    tally=st.lists(st.tuples(INTS, SUMS), max_size=2).map(tuple),
    history=st.dictionaries(INTS, ROWS, max_size=2),
    seen=st.lists(st.lists(st.tuples(TEXTS, INTS, INTS), max_size=3).map(tuple), max_size=2).map(tuple),
    contents=st.lists(st.builds(Contents, INTS, BATCHES), max_size=2).map(tuple),
)
DEALS = st.builds(rounds.Deal, INTS, INTS, INTS)
PARTS = st.builds(
    rounds.CompletePart, part=INTS, examples=INTS, finite=st.booleans(), holder=INTS, sums=st.none() | SUMS
)
MADE = st.builds(rounds.RoundMade, parts=st.lists(PARTS, max_size=2).map(tuple), divisor=INTS)
LANES = st.dictionaries(INTS, st.lists(INTS, max_size=3).map(tuple), max_size=3)
MEMBERS = st.lists(
    st.builds(rounds.MemberSeat, number=INTS, rank=INTS, task=TEXTS, host=TEXTS, address=TEXTS), max_size=3
).map(tuple)
FIELDS = {
    tuple[rounds.Deal, ...]: st.lists(DEALS, max_size=3).map(tuple),
    tuple[rounds.CompletePart, ...]: st.lists(PARTS, max_size=3).map(tuple),
    tuple[rounds.MemberSeat, ...]: MEMBERS,
    rounds.RoundMade | None: st.none() | MADE,
    rounds.ReduceAttempt | None: st.none()
    | st.builds(rounds.ReduceAttempt, number=INTS, made=MADE, lanes=LANES),
    rounds.Known | None: st.none() | st.builds(rounds.Known, members=MEMBERS, made=st.none() | MADE),
    Dealt: st.builds(Dealt, INTS, INTS, st.lists(INTS, max_size=3).map(tuple), st.booleans(), st.just(())),
    int: INTS,
    str: TEXTS,
    bool: st.booleans(),
    float: FLOATS,
    bytes: st.binary(max_size=30),
    dict[str, bytes]: st.dictionaries(st.text(max_size=5), st.binary(max_size=30), max_size=3),
    messages.Verdict: st.sampled_from(messages.Verdict),
    str | None: st.none() | TEXTS,
    int | None: st.none() | INTS,
    tuple[int, int]: st.tuples(INTS, INTS),
    dict[str, Any]: PLAIN,
    dict[str, Any] | None: st.none() | PLAIN,
    tuple[str, ...]: st.lists(TEXTS, max_size=3).map(tuple),
    TaskStatus | None: st.none() | STATUSES,
    tuple[TaskStatus, ...]: st.lists(STATUSES, max_size=3).map(tuple),
    tuple[tuple[int, int, int], ...]: st.lists(TRIPLES, max_size=3).map(tuple),
    tuple[int, float]: st.tuples(INTS, FLOATS),
    ArrayTag: st.builds(ArrayTag, INTS, INTS, INTS, st.booleans()),
    tuple[tuple[int, ...], ...]: st.lists(st.lists(INTS, max_size=3).map(tuple), max_size=3).map(tuple),
    tuple[int, ...]: st.lists(INTS, max_size=3).map(tuple),
    tuple[int, int, int]: TRIPLES,
    tuple[int, tuple[int, ...]]: BATCHES,
    tuple[int, tuple[int, ...]] | None: st.none() | BATCHES,
    tuple[int, int, tuple[int, ...], bool, tuple[int, ...]]: st.tuples(
        INTS,
        INTS,
        st.lists(INTS, max_size=3).map(tuple),
        st.booleans(),
        st.lists(INTS, max_size=3).map(tuple),
    ),
    messages.Sums | None: st.none() | SUMS,
    tuple[tuple[int, messages.Sums], ...]: st.lists(st.tuples(INTS, SUMS), max_size=2).map(tuple),
    dict[int, dict[str, Any]]: ROWS,
    dict[int, dict[int, dict[str, Any]]]: st.dictionaries(INTS, ROWS, max_size=2),
    dict[str, dict[str, dict[str, Any]]]: st.dictionaries(
        TEXTS, st.dictionaries(TEXTS, PLAIN, max_size=2), max_size=2
    ),
    dict[str, tuple[str, int]]: st.dictionaries(TEXTS, st.tuples(TEXTS, INTS), max_size=2),
    dict[str, list[str] | dict[str, str]]: st.dictionaries(
        TEXTS, st.lists(TEXTS, max_size=3) | st.dictionaries(TEXTS, TEXTS, max_size=2), max_size=3
    ),
    RunSpec: st.builds(RunSpec, name=TEXTS, cluster=st.builds(ClusterSection, ps=st.integers(1, 4))),
    messages.RefusalKind: REFUSALS,
    ServerSection: st.builds(training_section, seed=st.integers(0, 2**63 - 1))
    | st.builds(training_section, updates=st.just("sync"), deterministic=st.booleans()),
    messages.Refusal | None: st.none() | st.builds(messages.Refusal, reason=TEXTS, kind=REFUSALS),
    messages.FitState: STATES,
    messages.Lineage: LINEAGES,
    dict[str, int]: st.dictionaries(TEXTS, INTS, max_size=3),
    dict[int, str]: st.dictionaries(INTS, TEXTS, max_size=3),
    dict[int, tuple[Seat, ...]]: st.dictionaries(INTS, st.lists(SEATS, max_size=2).map(tuple), max_size=2),
    messages.closures.Operation: st.sampled_from(messages.closures.Operation),
    messages.Failure | None: st.none() | st.builds(messages.Failure, kind=TEXTS, message=TEXTS, trace=TEXTS),
    list[tuple[str, int, int]]: st.lists(st.tuples(TEXTS, INTS, INTS), max_size=3),
}
"""How to make any value of every type that a field of a message has."""


def some_message(kind):
    return st.builds(kind, **{field.name: FIELDS[field.type] for field in msgspec.structs.fields(kind)})


@st.composite
def some_blocks(draw):
    result = []
    for dtype, size, byte in draw(
        st.lists(st.tuples(st.sampled_from(sorted(DTYPE_BYTES)), st.integers(0, 40), st.integers(0, 255)))
    ):
        block = np.full(size * DTYPE_BYTES[dtype], byte, np.uint8).view(dtype)
        block.flags.writeable = bool(byte % 2)
        result.append(block)
    return result


def through(decoder, message, blocks=()):
    frames = [decoder.feed(chunk) for chunk in encode(message, blocks)]
    assert all(frame is None for frame in frames[:-1])
    return frames[-1]


def assert_same_blocks(found, expected):
    assert [(b.dtype, b.shape, b.tobytes()) for b in found] == [
        (b.dtype, b.shape, b.tobytes()) for b in expected
    ]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@settings(deadline=None, max_examples=8)
@given(data=st.data())
def test_every_message_comes_out_as_it_went_in(kind, data):
    message = data.draw(some_message(kind))
    decoder = FrameDecoder(Limits(1 << 26, LIMIT))
    for _ in range(2):
        frame = through(decoder, message)
        assert frame == Frame(message, [])
        assert type(frame.message) is kind


@settings(deadline=None, max_examples=40)
@given(blocks=some_blocks(), more=some_blocks())
def test_blocks_come_out_as_they_went_in_one_message_after_another(blocks, more):
    decoder = FrameDecoder(Limits(1 << 26, LIMIT))
    for each in (blocks, more):
        assert_same_blocks(through(decoder, Pull(generation=1, at_least=2, wait_s=0.5), each).blocks, each)


@pytest.mark.parametrize(
    "elements", [CHUNK_BYTES // 4 - 40, CHUNK_BYTES // 4, CHUNK_BYTES // 4 + 1, CHUNK_BYTES]
)
def test_large_blocks_travel_in_chunks_into_the_arrays_that_are_offered(elements):
    sent = [
        np.arange(elements, dtype=np.float32),
        np.arange(3, dtype=np.int8),
        np.arange(elements + 1, dtype=np.int16),
    ]
    offered = [np.zeros_like(block) for block in sent]
    chunks = list(encode(Pull(generation=1, at_least=2, wait_s=0.5), sent))
    assert max(map(len, chunks)) <= CHUNK_BYTES
    decoder = FrameDecoder(Limits(1 << 26, 1 << 24), offer=lambda message: offered)
    frames = [decoder.feed(chunk) for chunk in chunks]
    assert all(block is array for block, array in zip(frames[-1].blocks, offered, strict=True))
    assert_same_blocks(offered, sent)


def test_arrays_that_do_not_fit_are_left_alone():
    offered = [np.zeros(4, np.float32)]
    frame = through(
        FrameDecoder(Limits(1 << 26, LIMIT), offer=lambda message: offered),
        Pull(generation=1, at_least=2, wait_s=0.5),
        [np.ones(5, np.float32)],
    )
    assert frame.blocks[0].tolist() == [1] * 5
    assert offered[0].tolist() == [0] * 4


def test_what_was_sent_may_change_after_the_last_chunk_and_what_was_received_is_nobody_else_s():
    sent = np.ones(4, np.float32)
    frame = through(FrameDecoder(Limits(1 << 26, LIMIT)), Pull(generation=1, at_least=2, wait_s=0.5), [sent])
    sent[...] = 2
    assert frame.blocks[0].tolist() == [1] * 4
    assert frame.blocks[0].flags.writeable


# Whatever else arrives

PUSH = Push(generation=1, incarnation=1, sequence=1, base_version=0, plan_hash="abc")
GOOD = b"".join(encode(PUSH, [np.arange(5, dtype=np.float32)]))


def header(*parts, length=None):
    body = msgspec.msgpack.encode(parts)
    return struct.pack("<I", len(body) if length is None else length) + body


DEEP = b"\x92\x93\xa9Heartbeat\x01\x81\xa1p" + b"\x91" * 5000 + b"\xc0\x90"


@every_row(
    "chunk",
    [
        b"",
        b"\x00",
        b"GET / HTTP/1.1\r\n\r\n",
        header(PUSH, [("float32", 5)], length=2**32 - 1),
        header(PUSH, [("float32", 5)], length=1),
        header(PUSH, [("float32", -1)]),
        header(PUSH, [("float32", 2**62)]),
        header(PUSH, [("float32", 2**63)]),
        header(PUSH, [("float32", 2**18)] * 2),
        header(PUSH, [("object", 1)]),
        header(PUSH, [("<f4", 1)]),
        header(PUSH, [("float32", 1.5)]),
        header(PUSH, [("bool", 0)] * 100_000),
        header(PUSH),
        header(["Nothing", 1], []),
        header(["Push", 1], []),
        header(["Hello", b"\xff", "", ""], []),
        struct.pack("<I", 20) + b"\x92\x94\xa5Hello\xa2\xff\xfe\xa1x\xa1y\x90" + b"\0" * 20,
        struct.pack("<I", len(DEEP)) + DEEP,
        GOOD + b"\0" * 8,
        GOOD + GOOD,
    ],
    ids=lambda chunk: repr(chunk[:24]),
)
def test_hostile_bytes_are_refused_before_memory_is_taken(chunk):
    tracemalloc.start()
    try:
        with pytest.raises(PeerRefusedError):
            FrameDecoder(Limits(1 << 26, LIMIT)).feed(chunk)
        assert tracemalloc.get_traced_memory()[1] < 32 * (len(chunk) + LIMIT // 8)
    finally:
        tracemalloc.stop()


def test_more_bytes_than_announced_are_refused_in_a_later_chunk_too():
    decoder = FrameDecoder(Limits(1 << 26, LIMIT))
    assert decoder.feed(header(PUSH, [("float32", 4)]) + b"\0" * 8) is None
    with pytest.raises(PeerRefusedError, match="8 bytes more"):
        decoder.feed(b"\0" * 16)


@every_row("length", range(len(GOOD)))
def test_every_prefix_is_refused_or_waits_for_the_rest(length):
    decoder = FrameDecoder(Limits(1 << 26, LIMIT))
    try:
        assert decoder.feed(GOOD[:length]) is None
    except PeerRefusedError:
        return
    assert decoder.feed(GOOD[length:]).message == PUSH


@settings(deadline=None, max_examples=120)
@given(st.binary(max_size=200), st.booleans())
def test_garbage_is_refused(garbage, with_length):
    with contextlib.suppress(PeerRefusedError):
        FrameDecoder(Limits(1 << 26, LIMIT)).feed(
            struct.pack("<I", len(garbage)) + garbage if with_length else garbage
        )


@settings(deadline=None, max_examples=120)
@given(
    position=st.integers(0, len(GOOD) - 1),
    byte=st.integers(0, 255),
    kind=st.sampled_from(KINDS),
    data=st.data(),
)
def test_a_damaged_header_is_refused_or_is_another_message(position, byte, kind, data):
    damaged = bytearray(b"".join(encode(data.draw(some_message(kind)), [np.arange(5, dtype=np.float32)])))
    damaged[position % len(damaged)] = byte
    try:
        frame = FrameDecoder(Limits(1 << 26, LIMIT)).feed(bytes(damaged))
    except PeerRefusedError:
        return
    assert frame is None or isinstance(frame.message, KINDS)


def test_a_byte_is_copied_once_on_each_side():
    block, place = np.arange(4 * CHUNK_BYTES, dtype=np.float32), np.zeros(4 * CHUNK_BYTES, np.float32)
    decoder, frame, copied = FrameDecoder(Limits(1 << 26, 2 * block.nbytes), offer=lambda _: [place]), None, 0
    tracemalloc.start()
    try:
        for chunk in encode(PUSH, [block]):
            copied += tracemalloc.get_traced_memory()[
                1
            ]  # the chunk, and whatever else was there while it was cut
            tracemalloc.reset_peak()
            frame = decoder.feed(chunk)
            copied += tracemalloc.get_traced_memory()[1] - len(chunk)
            del chunk
            tracemalloc.reset_peak()
    finally:
        tracemalloc.stop()
    assert frame is not None
    assert frame.blocks[0] is place
    assert np.array_equal(place, block)
    assert copied / block.nbytes == pytest.approx(1, abs=0.05), (
        "cut into chunks once, and these written where they belong"
    )


def test_a_long_header_comes_in_pieces_that_grpc_takes():
    rows = {epoch: {"loss": [0.0] * 1000} for epoch in range(300)}
    message = messages.Conclude(generation=1, rows=rows)
    blocks = [np.arange(5, dtype=np.float32)]
    chunks = list(encode(message, blocks))
    assert len(chunks) > 2
    assert all(len(chunk) <= CHUNK_BYTES for chunk in chunks)
    decoder = FrameDecoder(Limits(1 << 26, 1 << 20))
    frames = [frame for chunk in chunks if (frame := decoder.feed(chunk)) is not None]
    assert [frame.message for frame in frames] == [message]
    assert frames[0].blocks[0].tolist() == blocks[0].tolist()
    with pytest.raises(PeerRefusedError, match="where at most 1048576 make sense"):
        FrameDecoder(Limits(1 << 20, 1 << 20)).feed(chunks[0])


def test_no_memory_for_what_is_announced_is_a_refusal():
    too_much = header(["Pull", 1, 0, 0.0], [["float32", 1 << 60]])
    with pytest.raises(PeerRefusedError, match="there is no memory for a message of"):
        FrameDecoder(Limits(1 << 20, 1 << 62)).feed(too_much)


@pytest.mark.parametrize(
    "header", [["x" * 10_000, []], [["Hello", 6, "", "", ""], [["x" * 10_000, 1]]]], ids=["message", "dtype"]
)
def test_an_error_quotes_little_of_what_has_come(header):
    data = msgspec.msgpack.encode(header)
    with pytest.raises(PeerRefusedError) as refused:
        FrameDecoder(UNKNOWN).feed(struct.pack("<I", len(data)) + data)
    assert len(str(refused.value)) < 500
