"""Lists of rows between hosts on real streams: hosts are threads of one process, each with an arena of its own."""

import os
import random
import time
from concurrent.futures import ThreadPoolExecutor

import msgspec
import numpy as np
import pytest
from collectives.scene import Scene
from collectives.served import Served
from collectives.test_row_update import ROWS, RULES, VARIABLES, WIDTH, Drawn, make
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from whole_mean import mean

from dtrain.collectives.all_reduce import ElementRange, Route
from dtrain.errors import PeerLostError, PeerRefusedError, SharedMemoryError, TrainingError, WaitTimeoutError
from dtrain.learning import optimizers
from dtrain.learning.core.sparse_rows import SparseRows
from dtrain.messages import Hello
from dtrain.parameters.updater import Contributions
from dtrain.process.secret import new_secret
from dtrain.roles.collective.arena import Arena
from dtrain.roles.collective.sums_over_hosts import HostReduction, MeanTerms, RowExchange, SumAttempt, Ways
from dtrain.variables import VariableSpec
from dtrain.wire.security.credentials import Credentials
from dtrain.wire.streams import Listener, open_stream

SECRET = new_secret()
"""As a launch makes it: the keys of a secret that a person has chosen take a tenth of a second each."""

PATIENCE_S, SHORT_S = 20.0, 0.2
PARTS = 4


class Streams:
    """Hosts that listen, with the ways of each."""

    def __init__(self, count):
        tasks = [f"worker:{host}" for host in range(count)]
        own = [Credentials.made(Hello(run_id="rows", cluster_hash="0", task=task), SECRET) for task in tasks]
        self.listeners = [Listener("127.0.0.1:1", each, lambda hello: None, 16) for each in own]

        def ways(host):
            def open_(task, name, timeout_s):
                listener = self.listeners[tasks.index(task)]
                return open_stream(task, listener.address, name, own[host], timeout_s)

            return Ways(dict(enumerate(tasks)), "1", open_, self.listeners[host].accept)

        self.ways = [ways(host) for host in range(count)]

    def close(self):
        for each in self.ways:
            each.close()
        for listener in self.listeners:
            listener.stop()


@pytest.fixture
def streams():
    made = []

    def make(count):
        made.append(Streams(count))
        return made[-1]

    yield make
    for each in made:
        each.close()


def begun(step, held, attempt=0):
    return SumAttempt(step, attempt, tuple(sorted(held)), {host: tuple(held[host]) for host in held})


def reduction_of(arena, host):
    groups, places = arena.shape.layout.groups, range(PARTS)
    return HostReduction(
        host,
        [arena.gradients[place].blocks[0] for place in places],
        arena.means,
        [group.trainable for group in groups],
        deterministic=True,
        rows=RowExchange(host, arena.rows, PARTS, places),
    )


def soon(seconds=PATIENCE_S):
    return time.monotonic() + seconds


some_ids = st.lists(st.integers(0, ROWS - 1), max_size=12)


@settings(max_examples=20, deadline=None)
@given(
    rule=st.sampled_from(RULES),
    lists=st.lists(st.lists(some_ids, min_size=PARTS, max_size=PARTS), min_size=2, max_size=2),
    holders=st.lists(st.lists(st.integers(0, 2), min_size=PARTS, max_size=PARTS), min_size=2, max_size=2),
    counted=st.lists(st.integers(0, PARTS - 1), min_size=1, max_size=PARTS, unique=True),
    weighted=st.booleans(),
    seed=st.integers(0, 99),
)
def test_any_ids_at_any_hosts_give_the_bits_of_a_server_everywhere(
    rule, lists, holders, counted, weighted, seed
):
    """Ids are repeated within a part and between parts; parts are empty, or elsewhere in the next step."""
    chance = random.Random(seed)
    scene = Drawn(rule, parts=PARTS, steps=len(lists), variables=VARIABLES, block_elements=2 * WIDTH)
    scene.lists = lists
    served = Served(scene)
    shape = msgspec.structs.replace(scene.shape, several_hosts=True)
    hosts = Streams(3)
    try:
        arenas = [Arena(shape, np.zeros(shape.starts()[-1], np.uint8), [0] * 1000) for _ in hosts.ways]
        reductions = [reduction_of(arena, host) for host, arena in enumerate(arenas)]
        spans = {group: ElementRange(0, each.size) for group, each in enumerate(shape.layout.groups)}
        stores = []
        for arena in arenas:
            scene.fill(arena)
            stores.append(arena.store(optimizers.serialize(rule), max_steps=scene.steps))
        places = sorted(counted)
        for version in range(scene.steps):
            counts = [chance.randint(1, 5) for _ in places] if weighted else None
            given = Contributions.of([()] * len(places), PARTS - len(places), counts, version)
            weights = None if given.weights is None else dict(zip(places, given.weights, strict=True))
            held = {
                host: [part for part in range(PARTS) if holders[version][part] == host] for host in range(3)
            }
            for host, arena in enumerate(arenas):
                for part in held[host]:
                    rows = {}
                    gradients = arena.gradients[part].variables
                    scene.compute(version, part, stores[host].variables, gradients, rows)
                    arena.rows.put(part, rows)
            what = begun(version, held), MeanTerms(tuple(places), given.count, weights)

            def summed(host, what=what):
                reductions[host].run(*what, hosts.ways[host], soon(), spans)

            with ThreadPoolExecutor(3) as pool:
                list(pool.map(summed, range(3)))
            for arena, store in zip(arenas, stores, strict=True):
                blocks = [arena.counted(part) for part in places]
                step = Contributions.of(blocks, PARTS - len(places), counts, version)
                make(store, replace(step, means=arena.means), chance)
            blocks = [served.gradient(version, part)[0] for part in places]
            served.store.apply(mean(blocks, [True], PARTS, counts, served.store.values), version)
        for arena in arenas:
            served.hold_against(arena, scene.steps)
    finally:
        hosts.close()


LONG = 70_000
"""Rows of a table whose ids take more than one segment."""


def of_table(rows=LONG, width=2, parts=2):
    scene = Scene(variables=(VariableSpec("table", (rows, width), "float32", sparse=True),), parts=parts)
    return Arena.make(msgspec.structs.replace(scene.shape, several_hosts=True))


def taken(arena):
    return os.fstat(arena.rows_fd).st_blocks * 512


def receives(arena, hosts, *blocks, seconds=PATIENCE_S):
    """Have host 0 receive the list of part 1 from host 1, which sends these blocks."""
    for block in blocks:
        hosts.ways[1].outgoing(Route(1, 0, "rows"), soon()).send(block)
    held = {0: [0], 1: [1]}
    RowExchange(0, arena.rows, 2, range(2)).receive(
        begun(3, held, attempt=7), held, hosts.ways[0], soon(seconds)
    )


def head(*words):
    return np.array(words, np.int64)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((3, 7, 1, -1), f"expected a list of 0 to {LONG}, found one of -1"),
        ((3, 7, 1, LONG + 1), f"expected a list of 0 to {LONG}, found one of {LONG + 1}"),
        ((3, 7, 1, 1 << 62), "found one of 4611686018427387904"),
        ((3, 6, 1, 4), r"expected \[3, 7, 1\], found \[3, 6, 1\]"),
        ((3, 7, 2, 4), r"found \[3, 7, 2\]"),
    ],
    ids=["negative", "more than the table", "huge", "another attempt", "other lists"],
)
def test_a_head_that_cannot_be_is_refused_before_memory_is_taken(streams, words, said):
    arena, hosts = of_table(), streams(2)
    before = taken(arena)
    with pytest.raises(PeerRefusedError, match=f"worker:1: .*{said}"):
        receives(arena, hosts, head(*words), np.arange(64, dtype=np.int64))
    assert taken(arena) == before
    assert hosts.ways[0].blamed == 1


ALL = np.arange(LONG, dtype=np.int64)


@pytest.mark.parametrize(
    "ids",
    [
        np.array([0, 2, 1], np.int64),
        np.array([0, 1, 1], np.int64),
        np.array([-1, 0, 1], np.int64),
        np.array([0, LONG], np.int64),
        np.array([5, 1 << 62], np.int64),
        np.concatenate([ALL[: 1 << 16], ALL[(1 << 16) - 1 : -1]]),
    ],
    ids=["descending", "twice", "negative", "beyond the table", "far beyond", "twice where a segment ends"],
)
def test_ids_that_cannot_be_are_refused_before_there_are_pages_for_rows(streams, ids):
    arena, hosts = of_table(width=64), streams(2)
    before = taken(arena)
    with pytest.raises(PeerRefusedError, match="worker:1: the rows of a table: expected ascending numbers"):
        receives(arena, hosts, head(3, 7, 1, len(ids)), ids)
    assert taken(arena) - before <= len(ids) * 8 + 2 * 65536
    assert [len(ids) for ids, _ in arena.rows.lists(3)] == [0], "nothing is listed"


def test_a_length_without_its_bytes_takes_one_segment(streams):
    arena, hosts = of_table(1_000_000, 8), streams(2)
    before = taken(arena)
    with pytest.raises(WaitTimeoutError, match="worker:1 has not sent"):
        receives(arena, hosts, head(3, 7, 1, 1_000_000), seconds=SHORT_S)
    assert taken(arena) - before <= 512 * 1024 + 2 * 65536


def test_what_comes_lies_apart_from_what_is_computed_here(streams):
    """An attempt that was given up may write it while a replica of this host computes the same part."""
    arena, hosts = of_table(), streams(2)
    own = SparseRows(np.array([3]), np.ones((1, 2), np.float32))
    arena.rows.put(1, {"table": own})
    rows = np.arange(2 * LONG, dtype=np.float32)
    receives(arena, hosts, head(3, 7, 1, LONG), ALL, rows)
    assert [block.tolist() for block in arena.rows.blocks(1)] == [[3], [1.0, 1.0]]
    ids, values = arena.counted(1)
    assert (ids.tobytes(), values.tobytes()) == (ALL.tobytes(), rows.tobytes())


def test_a_machine_without_memory_for_a_list_ends_its_run_and_not_the_attempt(streams, monkeypatch):
    """Other attempts would find no more of it."""
    arena, hosts = of_table(), streams(2)

    def need(first, last):
        raise SharedMemoryError("no memory to share")

    monkeypatch.setattr(arena.rows, "_need", need)
    with pytest.raises(TrainingError, match="no memory to share"):
        receives(arena, hosts, head(3, 7, 1, 4), ALL[:4], np.ones(8, np.float32))


def test_a_host_that_is_lost_among_its_lists_ends_the_wait_for_them(streams):
    arena, hosts = of_table(), streams(2)
    out = hosts.ways[1].outgoing(Route(1, 0, "rows"), soon())
    out.send(head(3, 7, 1, 4))
    out.send(ALL[:4])
    out.flush(soon())
    out.close()
    with pytest.raises(PeerLostError, match="worker:1"):
        receives(arena, hosts)
    assert hosts.ways[0].blamed == 1
