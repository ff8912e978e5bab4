"""How many steps a second replicas make over a slow link: `python tests/hosts/slow_link.py FILE [--torch PYTHON] [--runs N]`.
Needs root, /dev/net/tun and iproute2. Not a test itself.

Two network namespaces are joined by a switch of TUN devices that delays each packet by 20 ms, and tbf lets 100 Mbit/s out of
each. A replica and a server are in either; the model has 32 MB of variables and takes a few milliseconds a step. Each run is
measured from its third round on, and so is DDP of PyTorch on gloo between the same namespaces, with a Python that has it. A line of
JSON a run goes into FILE; the same command goes on where it was stopped, and prints medians and ratios at its end.
"""

import argparse
import contextlib
import fcntl
import heapq
import json
import os
import select
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from itertools import pairwise
from pathlib import Path

NAMES = ("slow0", "slow1")
ADDRESSES = ("10.77.0.1", "10.77.0.2")
DELAY_S, RATE = 0.020, "100mbit"
INPUTS, OUTPUTS, BATCH = 2048, 4096, 8
FRAME_BYTES = 9000
WAIT_S, ROUNDS = 400.0, 7
RUNS = {"sync": (1, ROUNDS), "local steps, H = 20": (20, ROUNDS), "local steps, H = 50": (50, ROUNDS)}
TUN_AND_NO_HEADER, SET_TUN = 0x0001 | 0x1000, 0x400454CA


class Switch:
    """Namespaces that exist until it is closed."""

    def __init__(self):
        self._devices = {}
        self._ended = False
        for name, address in zip(NAMES, ADDRESSES, strict=True):
            ip("netns", "add", name)
            device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
            fcntl.ioctl(device, SET_TUN, struct.pack("16sH22s", name.encode(), TUN_AND_NO_HEADER, b""))
            ip("link", "set", name, "netns", name)
            ip("-n", name, "addr", "add", f"{address}/24", "dev", name)
            for words in ((name, "mtu", str(FRAME_BYTES), "txqueuelen", "4000", "up"), ("lo", "up")):
                ip("-n", name, "link", "set", *words)
            limits = ("rate", RATE, "burst", "64kb", "latency", "400ms")
            ip("netns", "exec", name, "tc", "qdisc", "add", "dev", name, "root", "tbf", *limits)
            self._devices[address] = device
        self._thread = threading.Thread(target=self._pass_on, daemon=True)
        self._thread.start()

    def _pass_on(self):
        waiting, number = [], 0
        targets = {bytes(map(int, address.split("."))): device for address, device in self._devices.items()}
        while not self._ended:
            wait_s = 0.05 if not waiting else max(0.0, waiting[0][0] - time.monotonic())
            for device in select.select(list(targets.values()), [], [], wait_s)[0]:
                with contextlib.suppress(BlockingIOError):
                    while True:
                        packet = os.read(device, 65536)
                        target = targets.get(packet[16:20])
                        if packet[0] >> 4 == 4 and target is not None:
                            number += 1
                            heapq.heappush(waiting, (time.monotonic() + DELAY_S, number, target, packet))
            while waiting and waiting[0][0] <= time.monotonic():
                *_, target, packet = heapq.heappop(waiting)
                with contextlib.suppress(BlockingIOError):  # a full queue loses a packet, as a real one does
                    os.write(target, packet)

    def close(self):
        self._ended = True
        self._thread.join()
        for device in self._devices.values():
            os.close(device)
        for name in NAMES:
            ip("netns", "del", name)


def ip(*words):
    subprocess.run(("ip", *words), check=True)


def inside(place, *words, environment=None, **more):
    """Start a command in a namespace."""
    return subprocess.Popen(
        ("ip", "netns", "exec", NAMES[place], *words),
        env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", **(environment or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        **more,
    )


def measured_here(run):
    """Train with dtrain; returns the seconds that a step of a replica takes."""
    steps, rounds = RUNS[run]
    with tempfile.TemporaryDirectory() as folder:
        secret = Path(folder) / "secret"
        dtrain = str(Path(sys.executable).with_name("dtrain"))
        subprocess.run((dtrain, "secret", str(secret)), check=True, capture_output=True)
        addresses = {
            "chief": [f"{ADDRESSES[0]}:4000"],
            "worker": [f"{ADDRESSES[1]}:4001"],
            "ps": [f"{address}:{5000 + index}" for index, address in enumerate(ADDRESSES)],
        }
        spec = Path(folder) / "spec.json"
        training = {"updates": "sync", "local_steps": steps, "placement": "greedy"}
        training["partitioner"] = {"fixed_shards": 2}
        checkpoint = {"every_s": 3600}
        spec.write_text(json.dumps({"cluster": addresses, "training": training, "checkpoint": checkpoint}))
        tasks = []
        for role, index, place in (("ps", 0, 0), ("ps", 1, 1), ("chief", 0, 0), ("worker", 0, 1)):
            about = ("--spec", str(spec), "--index", str(index), "--secret-file", str(secret))
            program = (__file__, "program", str(steps), str(rounds))
            tasks.append(inside(place, dtrain, role, *about, *program, cwd=folder))
        return told_by(tasks, tasks[2])


def measured_torch(python, steps=6):
    """Train with DistributedDataParallel; returns the seconds of a step."""
    tasks = []
    for place, name in enumerate(NAMES):
        environment = {
            "MASTER_ADDR": ADDRESSES[0],
            "MASTER_PORT": "4100",
            "WORLD_SIZE": "2",
            "RANK": str(place),
        }
        environment["GLOO_SOCKET_IFNAME"] = name
        tasks.append(inside(place, python, __file__, "ddp", str(steps), environment=environment))
    return told_by(tasks, tasks[0])


def told_by(tasks, teller):
    """Return the number that a task prints as the last one of its lines; all of them end."""
    try:
        said, _ = teller.communicate(timeout=WAIT_S)
        lines = [line for line in said.splitlines() if line.startswith("seconds ")]
        assert lines, said[-3000:]
        return float(lines[-1].split()[1])
    finally:
        for task in tasks:
            if task.poll() is None:
                task.terminate()
            task.communicate(timeout=60)


def program(steps, rounds):
    """What every task of dtrain runs."""
    import numpy as np

    import dtrain as dt

    ended_s = []

    class Times(dt.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            ended_s.append(time.monotonic())

    strategy = dt.get_strategy()
    with strategy.scope():
        model = dt.Sequential([dt.layers.Dense(OUTPUTS, use_bias=False, input_shape=(INPUTS,))])
        model.compile(dt.optimizers.SGD(1e-3), "mse")
    batch = BATCH * 2
    x, y = np.ones((batch, INPUTS), np.float32), np.ones((batch, OUTPUTS), np.float32)
    data = dt.data.Dataset.from_tensor_slices((x, y)).batch(batch).repeat()
    model.fit(data, epochs=1, steps_per_epoch=steps * rounds, verbose=0, callbacks=[Times()])
    if strategy.is_leader:
        between = [after - before for before, after in pairwise(ended_s[2:])]
        print("seconds", statistics.median(between) / steps, flush=True)


def ddp(steps):
    """What every process of PyTorch runs."""
    import torch

    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(INPUTS, OUTPUTS, bias=False))
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    x, y = torch.ones(BATCH, INPUTS), torch.ones(BATCH, OUTPUTS)
    ended_s = []
    for _ in range(steps):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        ended_s.append(time.monotonic())
    between = [after - before for before, after in pairwise(ended_s[1:])]
    print("seconds", statistics.median(between), flush=True)
    torch.distributed.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--torch", metavar="PYTHON")
    parser.add_argument("--runs", type=int, default=3)
    args = parser.parse_args()
    lines = [json.loads(line) for line in args.file.read_text().splitlines()] if args.file.exists() else []
    known = {(line["run"], line["number"]): line["step_s"] for line in lines}
    kinds = [*RUNS, *(["torch DDP"] if args.torch else [])]
    switch = Switch()
    try:
        for number in range(args.runs):
            for run in kinds:
                if (run, number) not in known:
                    known[run, number] = step_s = (
                        measured_here(run) if run in RUNS else measured_torch(args.torch)
                    )
                    line = {"run": run, "number": number, "step_s": step_s, "load": os.getloadavg()[0]}
                    with args.file.open("a") as file:
                        file.write(json.dumps(line) + "\n")
                    print(line, flush=True)
    finally:
        switch.close()
    for run in kinds:
        steps_s = [known[run, number] for number in range(args.runs)]
        ratios = [known["sync", number] / known[run, number] for number in range(args.runs)]
        text = f"{run:22} {statistics.median(steps_s):.3f} s a step, {statistics.median(ratios):.1f} x sync"
        if args.torch:
            beside = [known["torch DDP", number] / known[run, number] for number in range(args.runs)]
            text += f", {statistics.median(beside):.1f} x torch DDP"
        print(text)


if __name__ == "__main__":
    if sys.argv[1:2] == ["program"]:
        program(*map(int, sys.argv[2:4]))
    elif sys.argv[1:2] == ["ddp"]:
        ddp(int(sys.argv[2]))
    else:
        main()
