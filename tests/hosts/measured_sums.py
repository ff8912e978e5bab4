"""The mean of an array over hosts that are joined by 1 Gbit/s, beside gloo: `python tests/hosts/measured_sums.py FILE
--torch PYTHON [--runs N]`. Needs root, iproute2, and a Python that has PyTorch. Not a test itself.

Each host is a network namespace, out of which tbf lets 1 Gbit/s. The ways take turns in the same processes: the ring by
which `fit` makes a step, the `all_reduce` of a loop of the program's own, and gloo's, which leaves the sum in the place
of the array. A sum begins everywhere at one moment, and ends when the last host has it. A line of JSON a sum goes into
FILE; a table at the end has the median, the ratio of speeds pair by pair with its range, and the bytes that the host that
sent most has sent by those of a ring, 2 (n - 1) / n of the array.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

COUNTS, KILOBYTES, WARM = (2, 4), (64, 1024, 16384, 65536), 2
WAYS = ("gloo", "ring", "all_reduce")
LIMITS = ("rate", "1gbit", "burst", "128kb", "latency", "400ms")
ALONE = {"DTRAIN_INSECURE": "1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
ALONE |= {"GLOO_SOCKET_IFNAME": "cable"}
SOON_S = 0.02
"""From the moment at which a sum is agreed on to its beginning."""


def sent_bytes():
    """Return what has left this host on its cable."""
    lines = Path("/proc/self/net/dev").read_text().splitlines()
    return next(int(line.split()[9]) for line in lines if line.strip().startswith("cable:"))


def program(rank, runs, *ips):
    """What each host runs."""
    import numpy as np
    import torch
    from benchmarks.programs.sums_between_hosts import Host
    from torch import distributed

    import dtrain as dt

    count = len(ips)
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{Path.cwd()}/init", rank=rank, world_size=count
    )
    strategy = dt.MultiWorkerMirroredStrategy()

    def all_have(*numbers):
        found = [torch.zeros(len(numbers), dtype=torch.float64) for _ in ips]
        distributed.all_gather(found, torch.tensor(numbers, dtype=torch.float64))
        return np.array([each.numpy() for each in found])

    for kilobytes in KILOBYTES:
        host = Host(rank, count, kilobytes * 256, ips)
        host.ports = [int(port) for (port,) in all_have(host.port)]
        given = host.gradient
        ways = {
            "gloo": lambda given=given: distributed.all_reduce(torch.from_numpy(given)),
            "ring": lambda host=host: host.sum("ring"),
            "all_reduce": lambda given=given: strategy.run(
                lambda: dt.distribute.get_replica_context().all_reduce("MEAN", given)
            ),
        }
        for number in range(-WARM, runs):
            for way in WAYS:
                given[:] = rank + number
                start_s = all_have(time.monotonic() + SOON_S).max()
                sent = sent_bytes()
                time.sleep(max(0.0, start_s - time.monotonic()))
                made = ways[way]()
                told = all_have(time.monotonic() - start_s, sent_bytes() - sent)
                found = {"gloo": given / count, "ring": host.mean}.get(way, made)
                assert np.allclose(found, (count - 1) / 2 + number, atol=1e-4), way
                if rank == 0 and number >= 0:
                    line = {"hosts": count, "kilobytes": kilobytes, "way": way, "seconds": told[:, 0].max()}
                    print("told", json.dumps({**line, "sent": told[:, 1].max(), "load": os.getloadavg()[0]}))
    distributed.barrier()
    sys.stdout.flush()
    os._exit(0)  # else dtrain and gloo wait for each other's threads


def measured(python, count, runs):
    """Return what the first of so many hosts has told."""
    import msgspec
    from security.three_hosts import SwitchedHosts

    hosts = SwitchedHosts(count)
    ips = [hosts.ip(rank) for rank in range(count)]
    paths = (ROOT / "runtime", ROOT, ROOT / "tests", Path(msgspec.__file__).parents[1])
    started = []
    try:
        with tempfile.TemporaryDirectory() as folder:
            for rank in range(count):
                shaped = ("tc", "qdisc", "add", "dev", "cable", "root", "tbf", *LIMITS)
                subprocess.run((*hosts.on(rank), *shaped), check=True)
                cluster = {"worker": [f"{ip}:4100" for ip in ips]}
                environment = {
                    "PYTHONPATH": os.pathsep.join(map(str, paths)),
                    "TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": "worker", "index": rank}}),
                    "DTRAIN_RUNS_DIR": f"{folder}/{rank}",
                }
                command = (*hosts.on(rank), python, __file__, "program", str(rank), str(runs), *ips)
                said = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
                more = {"cwd": folder, "env": os.environ | ALONE | environment, **said}
                started.append(subprocess.Popen(command, **more))
            while not any(each.poll() for each in started) and started[0].poll() is None:
                time.sleep(0.1)
            for each in started if any(each.poll() for each in started) else ():
                each.kill()
            outs = [each.communicate()[0] for each in started]
    finally:
        hosts.close()
    assert not any(each.returncode for each in started), "\n".join(outs)[-3000:]
    return [json.loads(line[5:]) for line in outs[0].splitlines() if line.startswith("told ")]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--torch", metavar="PYTHON", required=True)
    parser.add_argument("--runs", type=int, default=9)
    args = parser.parse_args()
    for count in COUNTS:
        lines = measured(args.torch, count, args.runs)
        with args.file.open("a") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)
        for kilobytes in KILOBYTES:
            those = [line for line in lines if line["kilobytes"] == kilobytes]
            by_way = {way: [line for line in those if line["way"] == way] for way in WAYS}
            for way, found in by_way.items():
                pairs = zip(by_way["gloo"], found, strict=True)
                ratios = [peer["seconds"] / own["seconds"] for peer, own in pairs]
                seconds = statistics.median(line["seconds"] for line in found)
                sent = statistics.median(line["sent"] for line in found)
                beside = f"{statistics.median(ratios):.2f} x gloo ({min(ratios):.2f} to {max(ratios):.2f})"
                sent_of = sent / (2 * (count - 1) / count * kilobytes * 1024)
                words = f"{count} hosts, {kilobytes} KB, {way}: {seconds * 1e3:.2f} ms, {beside}"
                print(f"{words}, sent {sent_of:.3f}, load {found[-1]['load']:.1f}", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["program"]:
        program(*map(int, sys.argv[2:4]), *sys.argv[4:])
    else:
        main()
