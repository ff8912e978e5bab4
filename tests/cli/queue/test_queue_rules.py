"""The rules of the queue, by simulation from seeds: launches come, end, are killed and moved; time is a number."""

import itertools
import math
import os
import random
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from dtrain.errors import SpecError
from dtrain_cli.queue.rules import Capacity, Ticket, Turn, moved, named, turns, waiting

MACHINE = Capacity(8, 100)
SEEDS = range(int(os.environ.get("DTRAIN_QUEUE_SEEDS", "12")))


def ticket(run: str, place: int, cores: int = 1, **claim: Any) -> Ticket:
    """Return a ticket of user 1, unless another one is said."""
    return Ticket(run, run, 0, cores, place=place, **{"uid": 1, "file": run, **claim})


def turn_of(name: str, *tickets: Ticket, now_s: float = 0.0, drained: bool = False) -> Turn:
    """Return the turn of the ticket of that name."""
    return next(each for each in turns(tickets, MACHINE, now_s, drained) if each.ticket.run == name)


def fits(tickets: Sequence[Ticket]) -> bool:
    """Return whether claims fit into the machine together; said anew here, in the plainest way."""
    ports = list(itertools.chain.from_iterable(each.ports for each in tickets))
    return (
        sum(each.cores for each in tickets) <= MACHINE.cores
        and sum(each.memory for each in tickets) <= MACHINE.memory
        and len(ports) == len(set(ports))
    )


def latest_starts(running: Sequence[Ticket], line: Sequence[Ticket], now: int) -> dict[str, int | None]:
    """Return when each starts at the latest if nobody passes anybody: second by second, from the limits."""
    ends = {each.file: None if (end := each.end_s(now)) == math.inf else int(end) for each in running}
    held, found_at, second = list(running), {}, now
    for each in line:
        while not fits([*held, each]):
            known = [end for end in (ends[other.file] for other in held) if end is not None]
            if not known:
                break
            second = max(second, min(known))
            held = [other for other in held if (end := ends[other.file]) is None or end > second]
        if not fits([*held, each]):
            break
        found_at[each.run] = second
        held.append(each)
        ends[each.file] = None if each.longest_s is None else second + int(each.longest_s)
    return {each.run: found_at.get(each.run) for each in line}


class World:
    """A machine with launches that do what they like within their limits."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = 0
        self.tickets: dict[str, Ticket] = {}
        self.ends: dict[str, int] = {}
        self.promised: dict[str, float] = {}
        self.numbers = itertools.count(1)

    def arrive(self) -> None:
        draw = self.random
        number = next(self.numbers)
        longest = draw.choice([None, draw.randint(1, 60)]) if draw.random() < 0.8 else draw.randint(1, 10)
        ports = (draw.randint(1, 3),) if draw.random() < 0.2 else ()
        cores, memory = draw.choice([1, 1, 2, 3, 5, 8]), draw.choice([0, 0, 10, 40, 100])
        claim = {"memory": memory, "ports": ports, "longest_s": longest, "uid": draw.choice([1, 2])}
        self.tickets[f"r{number}"] = ticket(f"r{number}", number, cores, **claim)

    def start_all(self, drained: bool) -> Iterator[tuple[Ticket, list[Ticket], list[Ticket]]]:
        """Let all whose turn it is start, one at a time, in any order, as processes do; yield each, with what
        ran and who waited before.
        """
        while ready := [turn for turn in self.turns(drained) if turn.starts]:
            chosen = self.random.choice(ready).ticket
            before = list(self.tickets.values())
            at_once = [turn.ticket for turn in ready]
            assert fits([*(each for each in before if each.started_s is not None), *at_once]), at_once
            self.tickets[chosen.run] = replace(chosen, started_s=self.now)
            longest = chosen.longest_s or 80
            self.ends[chosen.run] = self.now + self.random.randint(1, int(longest))
            yield (
                chosen,
                [each for each in before if each.started_s is not None],
                waiting(before),
            )

    def turns(self, drained: bool) -> list[Turn]:
        return turns(list(self.tickets.values()), MACHINE, self.now, drained)

    def remove(self, run: str) -> None:
        del self.tickets[run]
        self.ends.pop(run, None)
        self.promised.pop(run, None)


@pytest.mark.parametrize("seed", SEEDS)
def test_no_claim_is_exceeded_and_nobody_is_delayed_by_one_behind(seed: int) -> None:
    """Whatever comes and goes: claims fit, the order holds but for those that delay nobody, all get their turn,
    and nobody waits longer than was said.
    """
    print(f"seed {seed}")
    world = World(seed)
    for _ in range(200):
        if world.random.random() < 0.3:
            world.arrive()
        if world.tickets and world.random.random() < 0.05:
            world.remove(world.random.choice(list(world.tickets)))  # killed, wherever it stood
        step(world)
    while world.tickets:  # nobody comes any more
        assert world.ends, "somebody waits, and nothing runs"
        step(world)


def step(world: World) -> None:
    """Let a second pass, let start who may, and look at the promises."""
    world.now += 1
    for run in [run for run, end in world.ends.items() if end <= world.now]:
        world.remove(run)
    for chosen, running, line in world.start_all(drained=False):
        now_running = [each for each in world.tickets.values() if each.started_s is not None]
        assert fits(now_running), f"over-committed at {world.now}: {now_running}"
        earlier = [each for each in line if each.place < chosen.place]
        before = latest_starts(running, earlier, world.now)
        after = latest_starts(now_running, earlier, world.now)
        if not fits([*running, *earlier, chosen]):  # it passes the head
            head = next(each for each in earlier if before[each.run] != world.now)
            assert chosen.longest_s is not None, f"{chosen} has no limit and passes {head}"
            assert before[head.run] is not None, f"nobody can say when {head} starts, and {chosen} passes it"
        assert after == before, f"{chosen} delays somebody: {before} {after}"
        if chosen.run in world.promised:
            assert world.now <= world.promised[chosen.run], f"{chosen} waited longer than was said"
    left = world.turns(drained=False)
    if left:
        assert not fits(
            [*(each for each in world.tickets.values() if each.started_s is not None), left[0].ticket]
        )
    for turn in left:
        if turn.until_s < math.inf:
            world.promised[turn.ticket.run] = min(
                turn.until_s, world.promised.get(turn.ticket.run, turn.until_s)
            )


@pytest.mark.parametrize("seed", SEEDS[:10])
def test_while_it_is_drained_nobody_starts(seed: int) -> None:
    """However much is free; and nobody is told a time."""
    world = World(seed)
    for _ in range(20):
        world.arrive()
    assert not [turn for turn in world.turns(drained=True) if turn.starts or turn.until_s < math.inf]
    assert list(world.start_all(drained=True)) == []
    assert [turn for turn in world.turns(drained=False) if turn.starts]


def test_why_names_what_is_missing_who_has_it_and_until_when() -> None:
    """In the words of the guide."""
    digits = ticket("digits-3", 1, 4, longest_s=600.0, started_s=0.0, uid=2)
    head = turn_of("mine", digits, ticket("mine", 2, 6), ticket("next", 3, 1))
    name_of = lambda each: f"{each.run} of another user" if each.uid == 2 else each.run  # noqa: E731
    assert head.why(name_of, lambda s: f"14:{s / 60:02.0f}") == (
        "waits for 6 cores; 4 free until about 14:10 (digits-3 of another user)"
    )
    assert (
        turn_of("next", digits, ticket("mine", 2, 6), ticket("next", 3, 1)).why(
            name_of, lambda s: f"14:{s / 60:02.0f}"
        )
        == "waits for its turn until about 14:10; behind mine"
    )


def test_one_with_a_short_limit_passes_and_one_without_does_not() -> None:
    """And nobody passes one that waits for a run without a limit, or for one that is late."""
    short, none = ticket("short", 3, 2, longest_s=50.0), ticket("none", 3, 2)
    limited = ticket("running", 1, 4, longest_s=100.0, started_s=0.0)
    big = ticket("big", 2, 8)
    assert turn_of("short", limited, big, short).starts
    assert not turn_of("none", limited, big, none).starts
    assert not turn_of("short", limited, big, short, now_s=60.0).starts, "it would end after 100"
    assert not turn_of("short", replace(limited, longest_s=None), big, short).starts
    late = turn_of("big", limited, big, short, now_s=101.0)
    assert (late.until_s, late.awaited) == (math.inf, limited)
    assert "is late" in late.why(lambda each: each.run, str)


def test_claims_on_one_port_wait_for_each_other() -> None:
    """A spec that writes addresses can run once at a time."""
    first = ticket("first", 1, ports=(5000, 5001), started_s=0.0)
    turn = turn_of("second", first, ticket("second", 2, ports=(5001,)))
    assert (turn.starts, turn.lacks) == (False, "port 5001")
    assert turn_of("third", first, ticket("third", 2, ports=(5002,))).starts


def places(tickets: Sequence[Ticket], changed: Sequence[Ticket]) -> list[str]:
    """Return the line after a change."""
    now = {each.run: each for each in tickets} | {each.run: each for each in changed}
    return [each.run for each in waiting(list(now.values()))]


def test_a_user_moves_his_own_among_themselves_and_root_all() -> None:
    """The places of others stay as they are."""
    line = [ticket("a", 1), ticket("x", 2, uid=2), ticket("b", 3), ticket("c", 7), ticket("y", 9, uid=2)]
    a, x, b, c, y = line
    assert places(line, moved(line, c, "first", None, 1)) == ["c", "x", "a", "b", "y"]
    assert places(line, moved(line, a, "last", None, 1)) == ["b", "x", "c", "a", "y"]
    assert places(line, moved(line, c, "before", b, 1)) == ["a", "x", "c", "b", "y"]
    assert places(line, moved(line, y, "before", a, 0)) == ["y", "a", "x", "b", "c"]
    assert {each.place for each in moved(line, y, "first", None, 0)} <= {1, 2, 3, 7, 9}
    for wrong in ((x, "first", None), (a, "before", x), (a, "before", a)):
        with pytest.raises(SpecError):
            moved(line, *wrong, 1)
    with pytest.raises(SpecError, match="it runs"):
        named([replace(a, started_s=0.0)], "a")


def test_a_launch_is_found_by_id_name_or_prefix() -> None:
    """What several are called is refused with their ids."""
    line = [ticket("20-digits-ab", 1), replace(ticket("20-digits-cd", 2), name="other"), ticket("21-x-ef", 3)]
    assert named(line, "20-digits-ab") == line[0]
    assert named(line, "other") == line[1]
    assert named(line, "21") == line[2]
    for wrong in ("20-digits", "nobody", ""):
        with pytest.raises(SpecError):
            named(line, wrong)
