"""Steps over several hosts on real streams: replicas in processes that are forked, with real kills."""

import multiprocessing
import os
import signal
import time
from multiprocessing.connection import wait

import numpy as np
import pytest

from dtrain.collectives.between_hosts.follower import Apply, ComputeParts, Vote
from dtrain.errors import PeerLostError
from dtrain.messages import Hello
from dtrain.messages.replicas import PartFacts, Seat
from dtrain.process.secret import new_secret
from dtrain.roles.collective.between_hosts.host_steps import HostSteps
from dtrain.roles.collective.between_hosts.reduction import HostReduction, MeanTerms
from dtrain.wire.security.credentials import Credentials
from dtrain.wire.streams import Listener, open_stream

SECRET = new_secret()
"""As a launch makes it: the keys of a secret that a person has chosen take a tenth of a second each."""

PATIENCE_S, LEASE_S = 60.0, 20.0
ELEMENTS, STEPS, PARTS = 40_003, 6, 4
RATE = np.float32(0.1)


def gradient(weights, part, step):
    """Of the trained variables, and the new value of one that is not trained."""
    return weights * np.float32(0.1 * (part + 1)) + np.float32(1 / (1 + part + 7 * step))


def trajectory(steps):
    """The weights after all steps, in one process."""
    weights = np.linspace(-1, 1, ELEMENTS, dtype=np.float32)
    for step in range(steps):
        total = gradient(weights, 0, step)
        for part in range(1, PARTS):
            total = total + gradient(weights, part, step)
        weights = weights - RATE * (total / np.float32(PARTS))
    return weights


class Replica:
    """A host with one replica, which trains to the end."""

    def __init__(self, host, deterministic=True, said=lambda *words: None, ip="127.0.0.1", lease_s=LEASE_S):
        self.host, self.said, self.lease_s = host, said, lease_s
        own = Credentials.made(Hello(run_id="steps", cluster_hash="0", task=f"worker:{host}"), SECRET)
        self.listener = Listener(f"{ip}:1", own, lambda hello: None, 64)
        self.own, self.addresses = own, []
        self.weights = np.linspace(-1, 1, ELEMENTS, dtype=np.float32)
        self.gradients = [[np.zeros(ELEMENTS, np.float32), np.zeros(3)] for _ in range(PARTS)]
        self.mean = np.zeros(ELEMENTS, np.float32)
        means = {0: self.mean}
        self.reduction = HostReduction(
            host, self.gradients, means, [True, False], deterministic=deterministic
        )

    def open(self, task, name, timeout_s):
        address = self.addresses[int(task.partition(":")[2])]
        return open_stream(task, address, name, self.own, timeout_s)

    def reduce(self, begin, ways, deadline):
        self.reduction.run(begin, MeanTerms(tuple(range(PARTS)), PARTS, None), ways, deadline)

    def train(self):
        seats = {
            host: (Seat(rank=host, task=f"worker:{host}", address=""),) for host in range(len(self.addresses))
        }
        steps = HostSteps(
            Vote.first(self.host, seats),
            PARTS,
            self.reduce,
            self.open,
            self.listener.accept,
            lease_s=self.lease_s,
            patience_s=PATIENCE_S,
        )
        try:
            self.run(steps)
        finally:
            steps.close()
            self.listener.stop()

    def run(self, steps):
        made = 0
        while made < STEPS:
            match steps.next(time.monotonic() + PATIENCE_S):
                case ComputeParts(parts):
                    for part in parts:
                        self.compute(part, made)
                        steps.complete(PartFacts(part=part, examples=1, finite=True, rank=self.host))
                    steps.arrive(made)
                case Apply(step, _):
                    assert step == made
                    self.weights = self.weights - RATE * self.mean
                    told = [self.gradients[part][1][0] for part in range(PARTS)]
                    assert told == [part + 10.0 * step for part in range(PARTS)]
                    made += 1
                    steps.applied(step)
                    self.said(self.host, made, None)
        self.said(self.host, made, self.weights.tobytes())
        time.sleep(0.5)

    def compute(self, part, step):
        self.gradients[part][0][:] = gradient(self.weights, part, step)
        self.gradients[part][1][:] = part + 10.0 * step


class Said:
    """What hosts say, each on a pipe of its own: one that is killed holds no lock of another one's."""

    def __init__(self, fork, count):
        self.pipes = [fork.Pipe(duplex=False) for _ in range(count)]

    def put(self, words):
        self.pipes[words[0]][1].send(words)

    def get(self):
        ready = wait([reading for reading, _ in self.pipes], PATIENCE_S)
        assert ready, "a host says something in time"
        return ready[0].recv()


def host_process(host, ports, barrier, deterministic, said):
    replica = Replica(host, deterministic, lambda *words: said.put(words))
    ports[host] = int(replica.listener.address.rpartition(":")[2])
    barrier.wait(PATIENCE_S)
    replica.addresses = [f"127.0.0.1:{port}" for port in ports]
    replica.train()


@pytest.fixture
def started():
    fork = multiprocessing.get_context("fork")
    processes = []

    def start(count, deterministic=True):
        ports, barrier, said = fork.Array("i", count), fork.Barrier(count), Said(fork, count)
        for host in range(count):
            process = fork.Process(target=host_process, args=(host, ports, barrier, deterministic, said))
            process.start()
            processes.append(process)
        return processes, said

    yield start
    for process in processes:
        process.kill()
        process.join()


def ends(said, hosts):
    """The weights that these hosts have in the end."""
    found = {}
    while found.keys() < set(hosts):
        host, made, weights = said.get()
        if weights is not None:
            assert made == STEPS
            found[host] = weights
    return found


@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_bits_are_those_of_one_process(started, count):
    _, said = started(count)
    assert set(ends(said, range(count)).values()) == {trajectory(STEPS).tobytes()}


def test_a_ring_has_the_same_bits_at_every_host(started):
    _, said = started(3, deterministic=False)
    (weights,) = set(ends(said, range(3)).values())
    assert np.allclose(np.frombuffer(weights, np.float32), trajectory(STEPS), atol=1e-4)


@pytest.mark.parametrize("victims", [(2,), (0,), (1, 0)], ids=["a member", "the leader", "all but one"])
def test_hosts_that_are_killed_leave_the_step_to_the_others(started, victims):
    processes, said = started(3)
    while said.get()[1] < 2:
        pass
    for victim in victims:
        os.kill(processes[victim].pid, signal.SIGKILL)
    left = set(range(3)) - set(victims)
    found = ends(said, left)
    assert {found[host] for host in left} == {trajectory(STEPS).tobytes()}


class Sent:
    """The sending end of a stream that keeps what is sent."""

    peer = "worker:1"

    def __init__(self):
        self.blocks = []

    def send(self, block):
        self.blocks.append(block)

    def flush(self, deadline):
        pass

    abort = close = lambda self, reason="": None


def test_nothing_is_sent_of_a_promise_that_is_not_kept():
    """The leader of two hosts cannot write the promise of its first term, so nobody hears of that."""
    seats = {host: (Seat(rank=host, task=f"worker:{host}", address=""),) for host in range(2)}
    sent = Sent()

    def keep(vote):
        if vote.term:
            raise MemoryError("no room")

    def take(tasks, name, deadline, given_up):
        while given_up() is None:
            time.sleep(0.01)
        raise PeerLostError("given up")

    times = {"lease_s": LEASE_S, "patience_s": PATIENCE_S}
    steps = HostSteps(
        Vote.first(0, seats), 2, lambda *words: None, lambda *words: sent, take, keep=keep, **times
    )
    with pytest.raises(MemoryError, match="no room"):
        steps.next(time.monotonic() + PATIENCE_S)
    steps.close()
    assert not sent.blocks
