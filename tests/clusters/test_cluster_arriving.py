"""Connections that are cut in the midst of values, or of a gradient.

What was cut is sent again, and no step is computed twice.
"""

import re

from clusters.watching import report_of, succeeded

PROGRAM = """
import hashlib
import socket
import sys
import threading
from dtrain.cluster import Role
import numpy as np
import dtrain as dt
from dtrain.training.steps import TrainingStep
from dtrain.wire import grpc_client as client

BACK = {"ps:0": True, "ps:1": False}
CUTS = [int(byte) for byte in sys.argv[1:]]
grpc_channel = client.GrpcChannel


class Relay:
    '''Stands between this task and a server, and cuts the connection when so many bytes have come back, or gone there.'''

    def __init__(self, address, back):
        host, port = address.rsplit(":", 1)
        self.there, self.back, self.cuts, self.came = (host, int(port)), back, CUTS.copy(), 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = "127.0.0.1:%d" % self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            near, _ = self.listener.accept()
            far = socket.create_connection(self.there)
            for pair in ((near, far, False), (far, near, True)):
                threading.Thread(target=self.carry, args=pair, daemon=True).start()

    def carry(self, source, sink, back):
        try:
            while data := source.recv(65536):
                self.came += len(data) if back is self.back else 0
                if back is self.back and self.cuts and self.came > self.cuts[0]:
                    print("cut after", self.cuts.pop(0), flush=True)
                    break
                sink.sendall(data)
        except OSError:
            pass
        for end in (source, sink):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


relays = {}


def relayed(peer, address, hello, timeout_s):
    if CUTS and address not in relays:
        relays[address] = Relay(address, BACK[peer])
    return grpc_channel(peer, relays[address].address if address in relays else address, hello, timeout_s)


begun = []
compute = TrainingStep.loss_and_gradients


def counted(step, **more):
    begun.append(step)
    return compute(step, **more)


TrainingStep.loss_and_gradients = counted
strategy = dt.get_strategy()
if strategy.assignment.task.role is Role.WORKER:
    client.GrpcChannel = relayed
rng = np.random.default_rng(0)
x = rng.random((64, 1000), np.float32)
with strategy.scope():
    layers = [dt.layers.Dense(1100, "relu", use_bias=False, input_shape=(1000,)), dt.layers.Dropout(0.5)]
    model = dt.Sequential([*layers, dt.layers.Dense(1000, use_bias=False)])
    model.compile(optimizer=dt.optimizers.SGD(0.05), loss="mse")
model.fit(x, x, batch_size=16, epochs=1, steps_per_epoch=8, verbose=0)
print("begun", len(begun))
if strategy.is_leader:
    print("weights", hashlib.sha256(b"".join(value.tobytes() for value in model.get_weights())).hexdigest())
"""
SYNC = ("--workers", "1", "--ps", "2", "--no-evaluator", "--updates", "sync")
VARIABLE_BYTES = 4_400_000
CUTS = [int((steps + 0.6) * VARIABLE_BYTES) for steps in (2, 5)]
"""In the midst of what the third step brings; the second connection brings that, and the next ones, whole."""


def test_whatever_breaks_off_the_result_is_the_same_bit_for_bit(launcher):
    (launcher.folder / "dropped.py").write_text(PROGRAM)
    found = []
    for cuts in ([], CUTS):
        words = ("training.deterministic=true", "training.transport=grpc")
        settings = [word for each in words for word in ("--set", each)]
        launch = launcher.start(*SYNC, *settings, "dropped.py", *map(str, cuts))
        succeeded(launch)
        log = launch.log("worker:0")
        assert log.count("cut after") == 2 * len(cuts), "values of one server, and gradients for the other"
        assert re.search(r"^begun (\d+)$", log, re.M)[1] == "8"
        assert report_of(launch.run_dir)["global_step"] == 8
        found.append(re.search(r"^weights (\w+)$", launch.log("chief:0"), re.M)[1])
    assert len(set(found)) == 1
