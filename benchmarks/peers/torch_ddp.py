"""PyTorch's side of test_replicas_speed.py: the MLP 784-512-512-10 at batch 64 a replica under DistributedDataParallel.

dtrain launch --no-evaluator --workers 1 --ps 0 -- python torch_ddp.py --optimizer sgd --steps 300
"""

import argparse
import json
import time

import torch
from torch.nn.parallel import DistributedDataParallel

BATCH = 64


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--optimizer", choices=["sgd", "adam"], default="sgd")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--every", type=int, default=10, help="steps from one mark of the clocks to the next")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")  # by the variables of the launcher
    torch.manual_seed(0)
    x, y = torch.rand(10 * BATCH, 784), torch.randint(0, 10, (10 * BATCH,))
    layers = torch.nn.Linear(784, 512), torch.nn.Linear(512, 512), torch.nn.Linear(512, 10)
    first, second, last = layers
    relu = torch.nn.ReLU
    model = DistributedDataParallel(torch.nn.Sequential(first, relu(), second, relu(), last))
    loss_of = torch.nn.CrossEntropyLoss()
    kind = torch.optim.SGD if args.optimizer == "sgd" else torch.optim.Adam
    optimizer = kind(model.parameters(), lr=0.01 if args.optimizer == "sgd" else 0.001, fused=True)
    marks = []
    for step in range(args.steps):
        part = slice(step % 10 * BATCH, (step % 10 + 1) * BATCH)
        optimizer.zero_grad()
        loss = loss_of(model(x[part]), y[part])
        loss.backward()
        optimizer.step()
        if step % args.every == 0:
            marks.append((step, time.monotonic(), time.process_time()))
    print("marks", json.dumps(marks))
    print("loss", loss.item(), flush=True)
    torch.distributed.destroy_process_group()


main()
