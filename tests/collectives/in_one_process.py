"""Flows of several hosts carried out in one process, in any order that the ways between them allow."""

from collections import defaultdict, deque

from dtrain.collectives.all_reduce import SendBlock, carry_out


def run(flows, terms, means, random):
    """Carry out `flows` by host; `random` chooses which goes on. Returns the bytes that each host has sent."""
    ways, sent = defaultdict(deque), defaultdict(int)
    open_ = [(host, carry_out(flow, terms[host], means[host])) for host in flows for flow in flows[host]]
    waiting = dict.fromkeys(range(len(open_)))
    while waiting:
        ready = [
            index for index, need in waiting.items() if need is None or len(ways[need.way]) >= need.block.size
        ]
        assert ready, f"all wait for each other: {waiting}"
        index = random.choice(ready)
        host, steps = open_[index]
        if (need := waiting[index]) is not None:
            need.block[...] = [ways[need.way].popleft() for _ in need.block]
        step = waiting[index] = next(steps, False)
        if step is False:
            del waiting[index]
        elif isinstance(step, SendBlock):
            ways[step.way].extend(step.block.tolist())
            sent[host] += step.block.nbytes
            assert step.way.source == host
            waiting[index] = None
    assert not any(ways.values()), "what was sent was received"
    return sent
