"""torch.distributed with gloo, as torchrun would start it: an all-reduce, then a model whose gradients are
averaged.
"""

import os

import torch
import torch.distributed as dist

dist.init_process_group("gloo")  # from RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT
rank, size = dist.get_rank(), dist.get_world_size()
total = torch.tensor([10.0**rank])
dist.all_reduce(total)
print("rank", rank, "of", size, "local", os.environ["LOCAL_RANK"], "of", os.environ["LOCAL_WORLD_SIZE"])
print("sum", int(total))

torch.manual_seed(rank)  # only DDP makes the replicas' first weights equal
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.linspace(-1, 1, 64).reshape(-1, 1)[rank::size]
losses = []
for _ in range(100):
    loss = ((model(x) - (2 * x + 10)) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
print("losses", losses[0], losses[-1])
print(
    "learned",
    *(float(values.detach()) for values in model.parameters()),
    "threads",
    torch.get_num_threads(),
    flush=True,
)
dist.destroy_process_group()
