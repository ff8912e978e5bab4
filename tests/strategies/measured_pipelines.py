"""What pipelines cost and save: `python tests/strategies/measured_pipelines.py FILE [--torch PYTHON] [--only KIND] [--runs N]`.
Not a test itself.

- `speed`: steps a second of 4 Dense layers of 2,048 in 2 and 4 stages, beside torch.distributed.pipelining on gloo with a Python that
  has it; 256 examples in 8 microbatches, plain SGD, a thread each. Each run stands beside one of the other.
- `bubble`: the share of a step in which stages wait, with layers that sleep, so that cores do not decide.
- `traffic`: the bytes that travel in a step of VGG-11 (images of 224 x 224, a batch of 32), beside synchronous servers, by the counters
  of `dtrain status`.
- `link`: seconds a step over 100 Mbit/s and 20 ms between two namespaces, beside synchronous servers; needs root.

A line of JSON a run goes into FILE; the same command goes on where it was stopped, and prints medians at its end.
"""

import argparse
import itertools
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

WIDTH, LAYERS, MICROBATCHES, EXAMPLES = 2048, 4, 8, 256
FORWARD_S, BACK_S = 0.1, 0.2
"""How long a layer that sleeps does so for one microbatch: backward is twice the work, as in most layers."""
WARM, STEPS = 5, 20
WAIT_S = 1800.0
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
SCHEDULES = ("1f1b", "gpipe")
SPEEDS = [(schedule, stages) for schedule in SCHEDULES for stages in (2, 4)]
BUBBLES = [("1f1b", stages, count) for stages in (2, 3, 4) for count in (4, 8, 16)]
BUBBLES += [("gpipe", stages, 8) for stages in (2, 3, 4)]
TRAFFIC = {
    "pipeline, 2 stages": (
        "--strategy",
        "pipeline",
        "--set",
        "training.stages=[conv2d, dense]",
        "--workers",
        "1",
    ),
    "pipeline, 4 stages": ("--strategy", "pipeline", "--stages", "4"),
    "sync servers, 2 replicas": ("--updates", "sync", "--workers", "1", "--ps", "2"),
}
LINKS = {
    "pipeline": {"strategy": "pipeline"},
    "sync servers": {"updates": "sync", "placement": "greedy", "partitioner": {"fixed_shards": 2}},
}


def dtrain_of(python=sys.executable):
    return str(Path(python).with_name("dtrain"))


def launched(options, *program):
    """Launch this file as a program; return what the leader prints of it, and the status object of the run."""
    with tempfile.TemporaryDirectory() as folder:
        often = ("--set", "checkpoint.every_s=3600")
        words = (dtrain_of(), "launch", "--json", "--runs-dir", folder, "--no-evaluator", *often, *options)
        environment = {**os.environ, **ONE_THREAD}
        command = (*words, __file__, "program", *map(str, program))
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=WAIT_S, check=False
        )
    assert done.returncode == 0, done.stderr[-3000:]
    *lines, status = done.stdout.splitlines()
    return [json.loads(line.partition("said ")[2]) for line in lines if "said " in line], json.loads(status)


def measured_speed(schedule, stages):
    options = ("--strategy", "pipeline", "--stages", stages, "--set", f"training.schedule={schedule}")
    said, _ = launched(tuple(map(str, options)), "mlp", WARM + STEPS)
    [step_s] = [each["step_s"] for each in said if "step_s" in each]
    return step_s, sum(each["cpu_s"] for each in said if "cpu_s" in each)


def measured_torch(python, schedule, stages):
    """Train the same with PyTorch; return the seconds of a step, and the CPU seconds of all processes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    tasks = []
    for rank in range(stages):
        place = {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "RANK": str(rank),
            "WORLD_SIZE": str(stages),
        }
        tasks.append(
            subprocess.Popen(
                (python, __file__, "torch", schedule),
                env={**os.environ, **ONE_THREAD, **place, "GLOO_SOCKET_IFNAME": "lo"},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    told = [task.communicate(timeout=WAIT_S)[0] for task in tasks]
    lines = [line.split() for text in told for line in text.splitlines() if line.startswith("seconds ")]
    assert len(lines) == stages, told
    return float(lines[0][1]), sum(float(words[3]) for words in lines)


def spans_of(schedule, stages, count, steps):
    """Train with layers that sleep; return by stage the spans of its forwards and backwards: kind, begin, end.

    The seconds are those of this machine's monotonic clock.
    """
    names = [
        "sleeping",
        *(f"sleeping_{number}" for number in range(1, stages)),
    ]  # so that nothing is measured before
    options = ("--strategy", "pipeline", "--workers", stages - 1, "--set", f"training.schedule={schedule}")
    options += ("--set", f"training.microbatches={count}", "--set", f"training.stages=[{', '.join(names)}]")
    said, _ = launched(tuple(map(str, options)), "sleeping", stages, count, steps)
    return [each["spans"] for each in sorted(said, key=lambda each: each["stage"])]


def measured_bubble(schedule, stages, count):
    """Return the share of a step in which a stage does not compute: the median of the steps after the first ones."""
    steps = 5
    spans = spans_of(schedule, stages, count, steps)[0]
    starts = [spans[2 * count * step][1] for step in range(steps)]
    lasts = [after - before for before, after in itertools.pairwise(starts)]
    return 1 - count * (FORWARD_S + BACK_S) / statistics.median(lasts)


def measured_traffic(run):
    """Return the megabytes that travel in a step. The end that has opened a connection counts both ways."""
    moved = []
    for steps in (1, 2):  # their difference has no beginning
        _, status = launched(TRAFFIC[run], "vgg", steps)
        ways = ("bytes_sent", "bytes_received")
        moved.append(sum(task[way] or 0 for task in status["tasks"] for way in ways))
    return (moved[1] - moved[0]) / 1e6


def measured_link(run):
    from hosts.slow_link import ADDRESSES, Switch, inside, told_by

    switch = Switch()
    try:
        with tempfile.TemporaryDirectory() as folder:
            secret, spec = Path(folder) / "secret", Path(folder) / "spec.json"
            subprocess.run((dtrain_of(), "secret", str(secret)), check=True, capture_output=True)
            cluster = {"chief": [f"{ADDRESSES[0]}:4000"], "worker": [f"{ADDRESSES[1]}:4001"]}
            tasks = [("chief", 0, 0), ("worker", 0, 1)]
            if run != "pipeline":
                cluster["ps"] = [f"{address}:{5000 + index}" for index, address in enumerate(ADDRESSES)]
                tasks = [("ps", 0, 0), ("ps", 1, 1), *tasks]
            checkpoint = {"every_s": 3600}
            spec.write_text(
                json.dumps({"cluster": cluster, "training": LINKS[run], "checkpoint": checkpoint})
            )
            started = []
            for role, index, place in tasks:
                about = ("--spec", str(spec), "--index", str(index), "--secret-file", str(secret))
                words = (
                    dtrain_of(),
                    role,
                    *about,
                    __file__,
                    "program",
                    "mlp",
                    "8" if run == "pipeline" else "4",
                )
                started.append(inside(place, *words, cwd=folder))
            return told_by(started, started[-2])
    finally:
        switch.close()


# What every task of dtrain runs


def program(kind, *numbers):
    PROGRAMS[kind](*map(int, numbers))


def told(**said):
    print("said", json.dumps(said), flush=True)


def timed():
    import dtrain as dt

    class Times(dt.callbacks.Callback):
        """Notes when each step has ended."""

        def __init__(self):
            super().__init__()
            self.ended_s = []

        def on_train_batch_end(self, batch, logs=None):
            self.ended_s.append(time.monotonic())

    return Times()


def mlp(steps):
    import numpy as np

    import dtrain as dt

    strategy, times = dt.get_strategy(), timed()
    with strategy.scope():
        first = dt.layers.Dense(WIDTH, activation="relu", input_shape=(WIDTH,))
        others = [dt.layers.Dense(WIDTH, activation="relu") for _ in range(LAYERS - 1)]
        model = dt.Sequential([first, *others])
        model.compile(dt.optimizers.SGD(1e-4), "mse")
    chance = np.random.default_rng(0)
    x, y = (chance.normal(size=(EXAMPLES, WIDTH)).astype(np.float32) for _ in range(2))
    spent_s = []

    def noted(rows, targets):
        spent_s.append(time.process_time())
        return rows, targets

    data = dt.data.Dataset.from_tensor_slices((x, y)).batch(EXAMPLES).repeat().map(noted)
    model.fit(data, epochs=1, steps_per_epoch=steps, verbose=0, callbacks=[times])
    if steps > WARM + 3:
        told(cpu_s=(spent_s[steps - 1] - spent_s[WARM]) / (steps - 1 - WARM))
    if strategy.is_leader:
        warm = WARM if steps > WARM + 3 else 1
        ended_s = times.ended_s[warm - 1 :]
        step_s = (ended_s[-1] - ended_s[0]) / (len(ended_s) - 1)
        told(step_s=step_s)
        print("seconds", step_s, flush=True)


def sleeping(stages, count, steps):
    import numpy as np

    import dtrain as dt

    spans = []

    class Sleeping(dt.layers.Layer):
        """Computes for a while, without a core."""

        def declare(self, input_shape):
            return [dt.layers.Weight("scale", (1,), "ones")]

        def output_shape(self, input_shape):
            return input_shape

        def sleep(self, kind, seconds):
            begun = time.monotonic()
            time.sleep(seconds)
            spans.append((kind, begun, time.monotonic()))

        def forward(self, weights, x, call):
            if call.training:
                self.sleep("F", FORWARD_S)
            return x * weights["scale"], x

        def backward(self, weights, x, dy, gradients, call):
            self.sleep("B", BACK_S)
            gradients["scale"][...] = np.sum(x * dy)
            return dy * weights["scale"]

    with dt.get_strategy().scope():
        model = dt.Sequential([Sleeping(input_shape=(4,)), *(Sleeping() for _ in range(stages - 1))])
        model.compile(dt.optimizers.SGD(1e-6), "mse")
    x = np.ones((count, 4), np.float32)
    data = dt.data.Dataset.from_tensor_slices((x, x)).batch(count).repeat()
    model.fit(data, epochs=1, steps_per_epoch=steps, verbose=0)
    role, index = os.environ["DTRAIN_TASK"].split(":")
    told(stage=int(index) + (role == "worker"), spans=spans)


def vgg(steps):
    import numpy as np

    import dtrain as dt

    layers = dt.layers
    blocks = []
    for filters, convolutions in ((64, 1), (128, 1), (256, 2), (512, 2), (512, 2)):
        shape = {} if blocks else {"input_shape": (224, 224, 3)}
        blocks += [layers.Conv2D(filters, 3, padding="same", activation="relu", **shape)]
        blocks += [
            layers.Conv2D(filters, 3, padding="same", activation="relu") for _ in range(convolutions - 1)
        ]
        blocks += [layers.MaxPooling2D(2)]
    strategy = dt.get_strategy()
    with strategy.scope():
        dense = [
            layers.Dense(4096, activation="relu"),
            layers.Dense(4096, activation="relu"),
            layers.Dense(1000),
        ]
        model = dt.Sequential([*blocks, layers.Flatten(), *dense])
        loss = dt.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(dt.optimizers.SGD(1e-3), loss)
    x, y = np.zeros((32, 224, 224, 3), np.float32), np.zeros(32, np.int64)
    data = dt.data.Dataset.from_tensor_slices((x, y)).batch(32).repeat()
    model.fit(data, epochs=1, steps_per_epoch=steps, verbose=0)


PROGRAMS = {"mlp": mlp, "sleeping": sleeping, "vgg": vgg}


def torch_stage(schedule):
    """What every process of PyTorch runs."""
    import torch
    import torch.distributed as dist
    from torch.distributed import pipelining

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, stages = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    layers = [
        layer for _ in range(LAYERS // stages) for layer in (torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU())
    ]
    module = torch.nn.Sequential(*layers)
    stage = pipelining.PipelineStage(module, rank, stages, torch.device("cpu"))
    kind = {"1f1b": pipelining.Schedule1F1B, "gpipe": pipelining.ScheduleGPipe}[schedule]
    schedule = kind(stage, MICROBATCHES, loss_fn=torch.nn.functional.mse_loss)
    optimizer = torch.optim.SGD(module.parameters(), 1e-4)
    x, y = torch.randn(EXAMPLES, WIDTH), torch.randn(EXAMPLES, WIDTH)
    for step in range(WARM + STEPS):
        if step == WARM:
            dist.barrier()
            begun_s, spent_s = time.monotonic(), time.process_time()
        optimizer.zero_grad()
        if rank == 0:
            schedule.step(x)
        elif rank == stages - 1:
            schedule.step(target=y, losses=[])
        else:
            schedule.step()
        optimizer.step()
    cpu_s = (time.process_time() - spent_s) / STEPS
    dist.barrier()
    print("seconds", (time.monotonic() - begun_s) / STEPS, "CPU", cpu_s, flush=True)
    dist.destroy_process_group()


def wanted(args):
    """Yield each run: its key, and what measures it; numbers of one run after the other, so that pairs stand together."""
    for number in range(args.runs):
        for schedule, stages in SPEEDS if args.torch else []:
            pair = [("dtrain", measured_speed, ()), ("torch", measured_torch, (args.torch,))]
            for side, measure, before in pair if number % 2 else pair[::-1]:
                yield ("speed", side, schedule, stages, number), measure, (*before, schedule, stages)
        for case in BUBBLES:
            yield ("bubble", *case, number), measured_bubble, case
        for run in LINKS if os.geteuid() == 0 else ():
            yield ("link", run, number), measured_link, (run,)
    for run in TRAFFIC:
        yield ("traffic", run), measured_traffic, (run,)


def printed(known, runs):
    def of(*key):
        return [found for number in range(runs) if (found := known.get((*key, number))) is not None]

    for schedule, stages in SPEEDS:
        own, other = of("speed", "dtrain", schedule, stages), of("speed", "torch", schedule, stages)
        for place, what in enumerate(("steps", "CPU")) if own else ():
            pairs = list(zip(own, other, strict=False))
            ratios = sorted(theirs[place] / ours[place] for ours, theirs in pairs)
            median_s = [statistics.median(each[place] for each in side) for side in (own, other)]
            print(
                f"speed   {schedule:5} {stages} stages, {what:5}: {median_s[0]:.3f} s a step, torch {median_s[1]:.3f}, "
                f"{statistics.median(ratios):.2f} x ({ratios[0]:.2f} - {ratios[-1]:.2f}, n = {len(ratios)})"
            )
    for schedule, stages, count in BUBBLES:
        if found := of("bubble", schedule, stages, count):
            ideal = (stages - 1) / (count + stages - 1)
            print(
                f"bubble  {schedule:5} {stages} stages, {count:2} microbatches: {statistics.median(found):.3f}, "
                f"formula {ideal:.3f}, {statistics.median(found) / ideal:.3f} x"
            )
    for run in LINKS:
        if found := of("link", run):
            print(f"link    {run:14} {statistics.median(found):.2f} s a step (n = {len(found)})")
    for run in TRAFFIC:
        if ("traffic", run) in known:
            print(f"traffic {run:26} {known['traffic', run]:.1f} MB a step")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--torch", metavar="PYTHON")
    parser.add_argument("--only", choices=["speed", "bubble", "traffic", "link"])
    parser.add_argument("--runs", type=int, default=5)
    args = parser.parse_args()
    sys.path.append(str(Path(__file__).parents[1]))
    lines = [json.loads(line) for line in args.file.read_text().splitlines()] if args.file.exists() else []
    known = {tuple(line["key"]): line["found"] for line in lines}
    for key, measure, words in wanted(args):
        if key in known or args.only not in (None, key[0]):
            continue
        known[key] = measure(*words)
        line = {"key": key, "found": known[key], "load": os.getloadavg()[0]}
        with args.file.open("a") as file:
            file.write(json.dumps(line) + "\n")
        print(line, flush=True)
    printed(known, args.runs)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["program", *words]:
            program(*words)
        case ["torch", schedule]:
            torch_stage(schedule)
        case _:
            main()
