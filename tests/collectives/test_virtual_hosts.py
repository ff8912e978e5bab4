"""Steps over several hosts, from printed seeds: safety after every event, and progress where it is promised.

DTRAIN_SEEDS=FROM:TO chooses other seeds than the first 150.
"""

import math
import os
from itertools import combinations, product
from random import Random

from collectives.virtual_hosts import LEASE_S, Net

from dtrain.collectives.between_hosts.agent import BEAT_S
from dtrain.collectives.between_hosts.all_reduce import ordered_chain, ring

STEPS = 3
FROM, TO = map(int, os.environ.get("DTRAIN_SEEDS", "0:150").split(":"))


def hosts_of(random):
    """Ranks by host: mostly neighbours, now and then spread."""
    count = random.choice((1, 2, 2, 3, 3, 3, 4, 5))
    owners = sorted(range(count)) + [random.randrange(count) for _ in range(random.randrange(3))]
    if random.random() < 0.8:
        owners.sort()
    return [[rank for rank, owner in enumerate(owners) if owner == host] for host in range(count)]


def made(seed, steps=STEPS, needed=None):
    random = Random(seed)
    ranks = hosts_of(random)
    needs = needed(sum(map(len, ranks))) if needed else 0
    net = Net(seed, ranks, steps, random.choice((ring, ordered_chain)), needs)
    return net, random


def alive(net):
    return [node for node in net.nodes.values() if not node.dead]


def run_on(net, until_s):
    net.run(until_s, lambda: all(node.version >= STEPS or node.vote.left_behind for node in alive(net)))


def finished(net, nodes):
    for node in nodes:
        assert node.applied == list(range(node.first, STEPS)), (
            node.number,
            node.agent and node.agent.stands,
            node.vote,
        )
    assert len({node.weights.tobytes() for node in nodes}) <= 1, "all have the same bits"


def hosts_that_die(seed):
    """Up to all but one host die at any moment; all others hear of it. They finish, without a lease."""
    net, random = made(seed)
    for number in random.sample(range(len(net.nodes)), random.randrange(len(net.nodes))):
        net.later(random.uniform(0, 0.4), net.kill, number)
    net.run(0.4, lambda: False)
    run_on(net, 8.0)
    finished(net, alive(net))


def with_mates(random, most=4):
    """Ranks by host, which have mostly several."""
    counts = [random.choice((1, 2, 2, 3)) for _ in range(random.randrange(1, most))]
    ranks = iter(range(sum(counts)))
    return [[next(ranks) for _ in range(count)] for count in counts]


def end_proxies(net, random, until_s, ends):
    """Replicas that speak end, between two events or in the midst of what follows from one."""
    for _ in range(ends):
        number, at = random.choice(list(net.nodes)), random.uniform(0, until_s)
        net.later(at, random.choice((net.end, net.doom, net.doom)), number)


def speakers_that_die(seed):
    """The replicas that speak die at any moment, on all hosts, as long as one is left of each: all hosts finish
    every step, without a lease.
    """
    random = Random(seed)
    ranks = with_mates(random)
    net = Net(seed, ranks, STEPS, random.choice((ring, ordered_chain)))
    net.silent_s = math.inf  # no link is cut, so no sum waits in vain
    for number, own in enumerate(ranks):
        for _ in own[1:]:
            net.later(random.uniform(0, 0.8), random.choice((net.end, net.doom, net.doom)), number)
    net.run(0.8, lambda: False)
    run_on(net, 10.0)
    assert len(alive(net)) == len(ranks)
    finished(net, net.nodes.values())


def whole_hosts_that_die_with_their_speakers(seed):
    """Replicas die and others enter, until hosts are gone; those that are left finish."""
    random = Random(seed)
    ranks = with_mates(random, 5)
    net = Net(seed, ranks, 2 * STEPS, random.choice((ring, ordered_chain)))
    net.silent_s = math.inf
    end_proxies(net, random, 1.0, random.randrange(2 * len(ranks)))
    for _ in range(random.randrange(4)):
        number = random.randrange(len(ranks))
        net.later(random.uniform(0, 1.0), net.enter, number, random.choice([*ranks[number], net.parts + 1]))
    net.run(1.0, lambda: False)
    net.run(30.0, lambda: all(node.version >= net.steps for node in alive(net)))
    for node in alive(net):
        assert node.version == net.steps, (node.number, node.vote)
    assert len({node.weights.tobytes() for node in alive(net)}) <= 1


def speakers_that_die_while_links_are_cut(seed):
    """No two groups go on, whatever fails."""
    random = Random(seed)
    ranks = with_mates(random, 5)
    net = Net(seed, ranks, STEPS, random.choice((ring, ordered_chain)))
    end_proxies(net, random, 2.0, random.randrange(2 * len(ranks)))
    fail(net, random)
    for rank in random.sample(range(net.parts), random.randrange(net.parts)):
        net.later(random.uniform(0.5, 2.0), net.start_again, rank, "again")
    run_on(net, 25.0)
    done = [node for node in alive(net) if node.version == STEPS]
    if net.schedule is ordered_chain:
        assert len({node.weights.tobytes() for node in done}) <= 1


def links_that_blink(seed):
    """Links are cut for less than a beat, some times, in one direction or in both: nobody is left behind."""
    net, random = made(seed)
    for _ in range(random.randrange(1, 4)):
        pairs = list(combinations(range(len(net.nodes)), 2))
        for one, other in random.sample(pairs, min(1, len(pairs))):
            links = random.choice(({(one, other)}, {(other, one)}, {(one, other), (other, one)}))
            net.later(random.uniform(0, 1.0), net.sever, links, random.uniform(0.02, BEAT_S / 2))
    run_on(net, 30.0)
    finished(net, net.nodes.values())


def hosts_that_come_back(seed):
    """Hosts die, and some are started again and ask to take part: they end with the others, on the same bits."""
    net, random = made(seed, 3 * STEPS)
    come_back(net, random, 0.8)


def steps_that_are_held(seed):
    """Hosts die and all come back: no step begins with too few, and each that has begun is finished."""
    net, random = made(seed, 3 * STEPS, lambda replicas: replicas)
    come_back(net, random, 1.0)


def come_back(net, random, likely):
    for number in random.sample(range(len(net.ranks)), random.randrange(len(net.ranks))):
        died_s = random.uniform(0, 0.5)
        net.later(died_s, net.kill, number)
        for rank in net.ranks[number][: None if net.needed else 1]:
            if random.random() < likely:
                net.later(died_s + random.uniform(0.05, 0.3), net.start_again, rank, "again")
    net.run(0.9, lambda: False)
    net.run(60.0, lambda: all(node.version >= net.steps or node.vote.left_behind for node in alive(net)))
    ended = [node for node in alive(net) if not node.vote.left_behind]
    assert ended
    for node in ended:
        assert node.version == net.steps, (node.number, node.vote)
    assert len({node.weights.tobytes() for node in ended}) == 1


def a_partition(seed):
    """Two groups hear no more of each other, for good: one of them goes on, if one is large enough."""
    net, random = made(seed)
    numbers = range(len(net.nodes))
    one = set(random.sample(numbers, random.randrange(len(numbers) + 1)))
    links = {(a, b) for a, b in product(numbers, numbers) if (a in one) != (b in one)}
    net.later(random.uniform(0, 0.3), net.sever, links, None)
    run_on(net, 12.0)
    groups = [group for group in (one, set(numbers) - one) if group]
    larger = max(groups, key=lambda group: (len(group), 0 in group))
    finished(net, [net.nodes[number] for number in larger])


def anything(seed):
    """Cuts, deaths that are heard of and such that are not, and links that heal."""
    net, random = made(seed)
    fail(net, random)
    run_on(net, 25.0)
    done = [node for node in alive(net) if len(node.applied) == STEPS]
    if net.schedule is ordered_chain:
        assert len({node.weights.tobytes() for node in done}) <= 1


def fail(net, random):
    numbers = range(len(net.nodes))
    for _ in range(random.randrange(1, 5)):
        at = random.uniform(0, 2.0)
        if random.random() < 0.3:
            net.later(at, net.kill, random.choice(numbers))
            continue
        one = set(random.sample(numbers, random.randrange(len(numbers) + 1)))
        both = random.random() < 0.7
        links = {(a, b) for a, b in product(numbers, numbers) if a in one and b not in one}
        links |= {(b, a) for a, b in links} if both else set()
        net.later(at, net.sever, links, random.choice((0.1, 0.5, 1.5, 4.0)))


def hosts_that_are_silent_and_live(seed):
    """Hosts are cut off, in one direction or in both, or stand still, for about their lease or longer, and others end
    meanwhile: each host finishes, or ends as one that was left behind, and may take part anew; after one such fault at
    least one finishes.
    """
    random = Random(seed)
    net, _ = made(seed, random.choice((1, 3, 10)) * STEPS)
    net.ends = True
    numbers = range(len(net.nodes))
    faults = random.choice((1, 1, 2))
    for _ in range(faults):
        at, for_s = random.uniform(0, 1.5), random.choice((0.5, 1.2, 2, 4)) * LEASE_S
        if random.random() < 0.3:
            net.later(at, net.stop, random.choice(numbers), for_s)
            continue
        one = set(random.sample(numbers, random.randrange(1, len(numbers) + 1)))
        links = {(a, b) for a, b in product(numbers, numbers) if a in one and b not in one}
        links |= random.choice((set(), {(b, a) for a, b in links}, {(b, a) for a, b in links}))
        net.later(at, net.sever, links, for_s)
    net.run(100.0, lambda: not alive(net))
    for node in net.nodes.values():
        assert node.dead, (node.number, node.version, node.agent and node.agent.stands, node.vote)
    done = [node for node in net.nodes.values() if node.version == net.steps]
    assert done or faults > 1, "somebody finishes"
    if net.schedule is ordered_chain:
        assert len({node.weights.tobytes() for node in done}) <= 1


SCENES = (
    hosts_that_die,
    links_that_blink,
    a_partition,
    anything,
    hosts_that_come_back,
    steps_that_are_held,
    speakers_that_die,
    whole_hosts_that_die_with_their_speakers,
    speakers_that_die_while_links_are_cut,
    hosts_that_are_silent_and_live,
)


def test_drawn_scenes():
    for seed in range(FROM, TO):
        scene = SCENES[seed % len(SCENES)]
        try:
            scene(seed)
        except BaseException:
            print(f"seed {seed} of {scene.__name__}: DTRAIN_SEEDS={seed}:{seed + 1}")
            raise
