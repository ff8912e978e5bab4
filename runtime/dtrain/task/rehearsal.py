"""What every task does first, done once in the warm process, so that tasks share the memory that it leaves behind.

Decoders, class checks, Python's cache of methods and the like are worked out at their first use and kept: every task would do so
again, in pages of its own: 1.0 MB of an idle worker.
"""

import json
import random
import socket
import sys
import threading
from collections.abc import Sequence

import numpy as np

from dtrain import strategy
from dtrain.assignment import TF_CONFIG, TaskAssignment
from dtrain.data import Dataset
from dtrain.learning.layers import Dense
from dtrain.messages import AnyMessage, Conclude, Heartbeat, HeartbeatReply, Hello, Pull, Push, Reply, Values
from dtrain.strategies.parameter_server import ParameterServerStrategy
from dtrain.task.hot_code import gather_what_runs_in
from dtrain.training.sequential import Sequential
from dtrain.verdict import Verdict
from dtrain.wire.channel import Channel
from dtrain.wire.frames import Array
from dtrain.wire.local import LocalChannel
from dtrain.wire.packets import PacketSocket

CLUSTER = {"chief": ["127.0.0.1:1"], "worker": ["127.0.0.1:2"], "ps": ["127.0.0.1:3"]}
STEPS = 10
"""From the eighth call on Python adapts a function to what it meets, and counts fewer references."""


def prepare() -> None:
    """Do what can be done once for all tasks; nothing comes of it, and no file, thread or connection is left."""
    sys._clear_type_cache()  # else whoever looks up a method also counts references of the name that stood in its place before
    gather_what_runs_in(rehearse)
    rehearse()  # the copies have caches of their own


def rehearse() -> None:
    """Be a worker that trains a few steps, as a server in the same process tells it to."""
    config = json.dumps({"cluster": CLUSTER, "task": {"type": "worker", "index": 0}})
    assignment = TaskAssignment.from_environment({TF_CONFIG: config})
    if assignment is None:
        raise AssertionError("there is a TF_CONFIG")
    assignment = TaskAssignment.from_environment(assignment.to_environment(config)) or assignment
    random.seed(b"")
    np.random.seed(0)
    worker = _Worker(assignment)
    try:
        _train(worker)
    finally:
        worker.close()
        strategy.forget_use()
        for thread in set(threading.enumerate()) - {threading.main_thread()}:
            thread.join()


def _train(worker: "_Worker") -> None:
    one = np.ones((1, 1), np.float32)
    with worker.scope():
        model = Sequential([Dense(1, input_shape=(1,))])
        model.compile(optimizer="sgd", loss="mse")
    data = Dataset.from_tensor_slices((one, one)).repeat().batch(1)
    model.fit(lambda _: data, steps_per_epoch=STEPS, validation_data=(one, one), verbose=0)


class _Worker(ParameterServerStrategy):
    """A worker whose server is this file."""

    def _connect(self, server: int, timeout_s: float, transport: str) -> Channel:
        return _Prompted(self.assignment.hello())


class _Prompted(LocalChannel):
    """A connection whose other end answers in the thread that asks."""

    def __init__(self, hello: Hello) -> None:
        self.peer, self._aborted = "ps:0", None
        self._socket, self._other_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._packets, self._prompter = PacketSocket(self._socket), PacketSocket(self._other_end)
        self.send(hello)
        self.receive()

    def send(self, message: AnyMessage, blocks: Sequence[Array] = (), *, ahead: int | None = None) -> None:
        super().send(message, blocks)
        if heard := self._prompter.receive(limit_bytes=1 << 10):
            self._prompter.send(*_answer(heard.message))

    def close(self) -> None:
        super().close()
        self._other_end.close()


def _answer(message: AnyMessage) -> tuple[AnyMessage, Sequence[Array]]:
    values = [np.zeros(2, np.float32)]  # weight and bias
    match message:
        case Heartbeat(incarnation=incarnation):
            return HeartbeatReply(incarnation, generation=1, version=0, ended=False), ()
        case Pull(concluded=True):
            return Conclude(generation=1), ()
        case Pull():
            return Values(generation=1, version=0, max_steps=STEPS, plan={}, batch=0, term=1), values
        case Push(base_version=version):
            verdict = Verdict.ACCEPTED if version + 1 < STEPS else Verdict.FINISHED
            return Reply(verdict, version + 1, batch=version + 1), values
    return message, ()
