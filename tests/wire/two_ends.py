"""Two tasks of one host: who they are, what they say, and a server that answers with what it was sent."""

import socket
import threading

from dtrain.messages import Commit, Hello, Pull, Push, Subscribe
from dtrain.wire.channel import Answer
from dtrain.wire.frames import Limits
from dtrain.wire.one_host.packets import _head
from dtrain.wire.security.credentials import Credentials

SERVER, WORKER = (
    Credentials.made(Hello(run_id="run", cluster_hash="hash", task="ps:0")),
    Credentials.made(Hello(run_id="run", cluster_hash="hash", task="worker:0")),
)
PULL = Pull(generation=1, at_least=0, wait_s=1.0)
PUSH = Push(generation=1, incarnation=1, sequence=1, base_version=0, plan_hash="p")
LARGE = 1 << 20
HEAD = _head(PUSH, (), None)


class Echo:
    """Sends blocks back as they are, and remembers what it saw; a Subscribe is told more than a client can
    hold.
    """

    answers_at_once = True

    def limits(self, hello):
        return Limits(1 << 20, 1 << 26)

    def __init__(self):
        self.blocks = ()
        self.caller = None
        self.gone = threading.Event()

    def refuse(self, hello):
        return None

    def received(self, caller, frame):
        self.blocks, self.caller = frame.blocks, caller
        if isinstance(frame.message, Subscribe):
            for version in range(20_000):
                caller.send(Commit(generation=1, version=version, contributors=()))
            return Answer.STREAM
        caller.send(frame.message, frame.blocks)
        return Answer.ONE

    def disconnected(self, caller):
        self.gone.set()


def announce(end, number, fd):
    end.send(b"\xff\xff\xff\xff" + number.to_bytes(4, "little"))
    socket.send_fds(end, [b"\0"], [fd])
