"""Connections that are cut in the midst of values with which a step has begun: it is computed again, as if nothing had been."""

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
from dtrain.wire import client

CUTS = [int(byte) for byte in sys.argv[2:]]
grpc_channel = client.GrpcChannel


class Relay:
    '''Stands between this task and a server, and cuts the connection when so many bytes have come back.'''

    def __init__(self, address, cuts):
        host, port = address.rsplit(":", 1)
        self.there, self.cuts, self.came = (host, int(port)), cuts, 0
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
                self.came += len(data) if back else 0
                if back and self.cuts and self.came > self.cuts[0]:
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
    if peer == sys.argv[1] and address not in relays:
        relays[address] = Relay(address, CUTS)
    return grpc_channel(peer, relays[address].address if address in relays else address, hello, timeout_s)


class Counted(dt.Sequential):
    begun = 0

    def train_step(self, step):
        self.begun += 1
        return super().train_step(step)


strategy = dt.get_strategy()
if strategy.assignment.task.role is Role.WORKER:
    client.GrpcChannel = relayed
rng = np.random.default_rng(0)
x = rng.random((64, 1000), np.float32)
with strategy.scope():
    layers = [dt.layers.Dense(1500, "relu", use_bias=False, input_shape=(1000,)), dt.layers.Dropout(0.5)]
    model = Counted([*layers, dt.layers.Dense(1000, use_bias=False)])
    model.compile(optimizer=dt.optimizers.SGD(0.05), loss="mse")
model.fit(x, x, batch_size=16, epochs=1, steps_per_epoch=8, verbose=0)
print("begun", model.begun)
if strategy.is_leader:
    print("weights", hashlib.sha256(b"".join(value.tobytes() for value in model.get_weights())).hexdigest())
"""
SYNC = ("--workers", "1", "--ps", "2", "--no-evaluator", "--updates", "sync")
VARIABLE_BYTES = 6_000_000
CUTS = [int((versions + 0.6) * VARIABLE_BYTES) for versions in (2, 5)]
"""The second connection brings the values of the cut version, and the next ones, whole."""


def test_a_step_whose_values_break_off_is_computed_again_bit_for_bit(launcher):
    (launcher.folder / "dropped.py").write_text(PROGRAM)
    found = []
    for server, cuts in (("", []), ("ps:0", CUTS), ("ps:1", CUTS)):
        settings = ("--set", "training.deterministic=true", "--set", "training.transport=grpc")
        launch = launcher.start(*SYNC, *settings, "dropped.py", server, *map(str, cuts))
        succeeded(launch)
        log = launch.log("worker:0")
        assert log.count("cut after") == len(cuts)
        assert f"begun {8 + len(cuts)}" in log
        assert report_of(launcher, launch.run_dir)["global_step"] == 8
        found.append(re.search(r"^weights (\w+)$", launch.log("chief:0"), re.M)[1])
    assert len(set(found)) == 1
