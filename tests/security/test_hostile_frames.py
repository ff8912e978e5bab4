"""A deterministic run to whose servers a task with the run's secret sends nonsense ends with the same bits."""

import hashlib
import os

import numpy as np
import pytest
from in_memory import InMemoryCluster, step_in_work
from security.hostile import Hostile

import dtrain as dt
from dtrain.errors import PeerRefusedError
from dtrain.messages import Hello
from dtrain.wire.channel import MemoryCaller
from dtrain.wire.frames import FrameDecoder

FRAMES = int(os.environ.get("DTRAIN_HOSTILE", "800"))
"""From each role."""
SEED = int(os.environ.get("DTRAIN_HOSTILE_SEED", "0"))
SERVERS, STEPS = 2, 20

chance = np.random.default_rng(3)
X = chance.normal(size=(STEPS * 8, 5)).astype(np.float32)
Y = chance.integers(0, 3, len(X))


class Attacked(dt.Sequential):
    """Lets `attack` happen before the leader computes a part of a step that it has not computed before."""

    def __init__(self, attack):
        super().__init__([dt.layers.Dense(8, activation="tanh", input_shape=(5,)), dt.layers.Dense(3)])
        self.attack, self.seen = attack, set()
        loss = dt.losses.SparseCategoricalCrossentropy(from_logits=True)
        self.compile(dt.optimizers.Adam(0.01), loss)

    def train_step(self, step):
        number = step_in_work(step)
        if self.strategy.is_leader and number not in self.seen:
            self.seen.add(number)
            self.attack()
        return super().train_step(step)


class Attacker:
    """Sends frames of one role to all servers in turns, as the service would hand them over."""

    def __init__(self, role, seed):
        self.hostile = Hostile(role, seed)
        self.frames = self.hostile.frames()
        self.cluster = None
        self.taken = self.refused = 0

    def send(self):
        for number in range(FRAMES // STEPS):
            self.send_one(self.cluster.servers[number % SERVERS], next(self.frames))

    def send_one(self, server, data):
        hello = Hello(run_id="in-memory", cluster_hash="", task=self.hostile.role)
        caller = MemoryCaller(hello)
        try:
            frame = FrameDecoder(server.limits(hello)).feed(data)
            if frame is not None and not self.hostile.rightful(frame.message):
                server.received(caller, frame)
                self.taken += 1
        except PeerRefusedError:
            self.refused += 1
        finally:
            server.disconnected(caller)


def bits(folder, attacker=None, **training):
    def body(model):
        history = model.fit(X, Y, batch_size=8, epochs=1, shuffle=False, verbose=0)
        values = b"".join(weight.tobytes() for weight in model.get_weights())
        return hashlib.sha256(values).hexdigest(), history.history["loss"]

    cluster = InMemoryCluster(folder, 3, SERVERS, deterministic=True, **training)
    if attacker is not None:
        attacker.cluster = cluster
    return cluster.run(lambda: Attacked(attacker.send if attacker else lambda: None), body)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    return bits(tmp_path_factory.mktemp("undisturbed"))


@pytest.mark.parametrize("role", ["worker:0", "ps:1", "evaluator:0", "chief:0"])
def test_the_bits_are_those_of_the_undisturbed_run(role, undisturbed, tmp_path):
    print(f"DTRAIN_HOSTILE={FRAMES} DTRAIN_HOSTILE_SEED={SEED}")
    attacker = Attacker(role, SEED)
    assert bits(tmp_path, attacker) == undisturbed
    assert attacker.taken > FRAMES / 4
    assert attacker.refused > FRAMES / 20
