"""Sums over several hosts on real streams: hosts are threads of one process, with several lanes each."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from dtrain.collectives.all_reduce import ElementRange, Terms, ordered_chain, ring, slices
from dtrain.errors import PeerLostError, PeerRefusedError, WaitTimeoutError
from dtrain.messages import Hello
from dtrain.process.secret import new_secret
from dtrain.roles.collective.sums_over_hosts import HostSum, Ways, exchange
from dtrain.wire.security.credentials import Credentials
from dtrain.wire.streams import Listener, open_stream

SECRET = new_secret()
"""As a launch makes it: the keys of a secret that a person has chosen take a tenth of a second each."""

PATIENCE_S = 20.0
SHORT_S = 0.05
ELEMENTS, LENGTH = 30_011, 1000


class Hosts:
    """Hosts with `lanes` tasks each, which all listen."""

    def __init__(self, count, lanes):
        self.count, self.lanes = count, lanes
        self.tasks = {
            (host, lane): f"worker:{host * lanes + lane}" for host in range(count) for lane in range(lanes)
        }
        self.credentials = {
            task: Credentials.made(Hello(run_id="sums", cluster_hash="0", task=task), SECRET)
            for task in self.tasks.values()
        }
        self.listeners = {
            task: Listener("127.0.0.1:1", own, lambda hello: None, 16)
            for task, own in self.credentials.items()
        }
        self.ways = {place: self._ways(*place) for place in self.tasks}
        self.means = {host: np.full(ELEMENTS, np.nan, np.float32) for host in range(count)}

    def _ways(self, host, lane):
        own = self.tasks[host, lane]

        def open_(task, name, timeout_s):
            return open_stream(task, self.listeners[task].address, name, self.credentials[own], timeout_s)

        tasks = {other: self.tasks[other, lane] for other in range(self.count)}
        return Ways(tasks, f"1.0 {lane}", open_, self.listeners[own].accept)

    def run(self, schedule, which, held, gradients, deadline):
        """Have every task of every host carry its lane out; the errors by (host, lane)."""

        def carried(place):
            host, lane = place
            span = slices(ELEMENTS, self.lanes)[lane]
            flows = schedule(range(self.count), host, held, span, LENGTH)
            terms = Terms({part: gradients[part] for part in held[host]}, len(gradients))
            sum_ = which[host] if isinstance(which, dict) else which
            try:
                exchange(sum_, flows, terms, self.means[host], self.ways[place], deadline)
                self.ways[place].flush(deadline)
            except (PeerLostError, PeerRefusedError, WaitTimeoutError) as error:
                return error

        with ThreadPoolExecutor(len(self.tasks)) as pool:
            return dict(zip(self.tasks, pool.map(carried, self.tasks), strict=True))

    def close(self):
        for ways in self.ways.values():
            ways.close()
        for listener in self.listeners.values():
            listener.stop()


@pytest.fixture
def hosts():
    made = []

    def make(count, lanes):
        made.append(Hosts(count, lanes))
        return made[-1]

    yield make
    for each in made:
        each.close()


def drawn(parts):
    rng = np.random.default_rng(parts)
    return [rng.normal(size=ELEMENTS).astype(np.float32) for _ in range(parts)]


def soon():
    return time.monotonic() + PATIENCE_S


HELD = {
    2: {0: [0, 1], 1: [2]},
    3: {0: [0], 1: [1, 2, 3], 2: [4]},
    5: {0: [0, 5], 1: [1], 2: [], 3: [2, 3], 4: [4]},
}


@pytest.mark.parametrize("lanes", [1, 2])
@pytest.mark.parametrize("count", [2, 3, 5])
def test_step_after_step_has_the_mean_at_every_host(hosts, count, lanes):
    made, held = hosts(count, lanes), HELD[count]
    parts = sum(map(len, held.values()))
    for step, schedule in enumerate([ring, ordered_chain, ordered_chain, ring]):
        gradients = [block + step for block in drawn(parts)]
        errors = made.run(schedule, HostSum(step, 0, 0, ELEMENTS), held, gradients, soon())
        assert not any(errors.values())
        expected = gradients[0].copy()
        for block in gradients[1:]:
            expected += block
        expected /= np.float32(parts)
        for mean in made.means.values():
            assert np.allclose(mean, expected, atol=1e-5)
            assert schedule is ring or mean.tobytes() == expected.tobytes()


def test_a_host_that_does_not_come_ends_the_sum_at_its_deadline_with_its_name(hosts):
    made = hosts(2, 1)
    flows = ordered_chain(range(2), 1, {0: [0], 1: [1]}, ElementRange(0, ELEMENTS), LENGTH)
    with pytest.raises(WaitTimeoutError, match="worker:0 has not opened its stream"):
        exchange(
            HostSum(1, 0, 0, ELEMENTS),
            flows,
            Terms({1: drawn(1)[0]}, 2),
            made.means[1],
            made.ways[1, 0],
            time.monotonic() + SHORT_S,
        )


@pytest.mark.parametrize("schedule", [ring, ordered_chain])
def test_a_host_that_is_lost_in_the_midst_ends_the_sum_everywhere(hosts, schedule):
    made, held = hosts(3, 1), {0: [0], 1: [1], 2: [2]}
    made.run(schedule, HostSum(0, 0, 0, ELEMENTS), held, drawn(3), soon())

    class Dies(Terms):
        def add(self, *words, **more):
            made.ways[1, 0].close()  # the kernel does as much for a process that is killed
            raise PeerLostError("killed")

    def carried(host):
        terms = (Dies if host == 1 else Terms)({host: drawn(3)[host]}, 3)
        flows = schedule(range(3), host, held, ElementRange(0, ELEMENTS), LENGTH)
        ways = made.ways[host, 0]
        try:
            exchange(HostSum(1, 0, 0, ELEMENTS), flows, terms, made.means[host], ways, soon())
        except PeerLostError as error:
            ways.abort(str(error))
            return str(error)

    with ThreadPoolExecutor(3) as pool:
        said = list(pool.map(carried, range(3)))
    assert all(said), said
    # Another host may have been faster, or another thread of this one, whose streams are closed by then.
    assert said[1] == "killed" or "the stream of" in said[1], said[1]


def test_another_thread_ends_a_sum_with_a_reason(hosts):
    made = hosts(2, 1)
    timer = threading.Timer(SHORT_S, made.ways[0, 0].abort, ["worker:1 is lost"])
    flows = ring(range(2), 0, {0: [0], 1: [1]}, ElementRange(0, ELEMENTS), LENGTH)
    timer.start()
    with pytest.raises(PeerLostError, match="worker:1 is lost"):
        exchange(
            HostSum(1, 0, 0, ELEMENTS),
            flows,
            Terms({0: drawn(1)[0]}, 2),
            made.means[0],
            made.ways[0, 0],
            soon(),
        )
    timer.join()


def test_two_hosts_that_mean_different_sums_say_so(hosts):
    made, held = hosts(2, 1), {0: [0], 1: [1]}
    which = {0: HostSum(3, 0, 0, ELEMENTS), 1: HostSum(4, 1, 0, ELEMENTS)}
    errors = made.run(ring, which, held, drawn(2), soon())
    said = [str(error) for error in errors.values()]
    assert any("Sum(step=3, attempt=0, block=0" in text and "step=4, attempt=1" in text for text in said), (
        said
    )
