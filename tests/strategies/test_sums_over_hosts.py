"""Sums within a step over several hosts: the bits of one process that computes all parts side by side, whoever dies."""

from dataclasses import dataclass

import numpy as np
import pytest
from collectives.members import Death, check, start, train
from collectives.scene import Scene
from row_by_row import each_with_one

from dtrain.strategies.replicas.reduction import ReduceOp

SCALE = np.float32(1e-3)


@dataclass
class Calling(Scene):
    """Every part with examples makes two calls; gradients have what came of them.

    Attributes:
        large: by how much the first value is multiplied in length.
        silent: the (round, part)s that leave the second call out.
    """

    large: int = 1
    silent: frozenset[tuple[int, int]] = frozenset()

    def calls(self, number, part, values, gradients):
        """Yield what a part gives to each call, be sent the result; return what `Scene.compute` does."""
        examples = self.examples.get((number, part), 8)
        told = super().compute(number, part, values, gradients, {})
        if examples:
            given = np.tile(values["bias"], self.large) * np.float32(part + 1.5)
            total = yield ReduceOp.SUM, given
            gradients["bias"] += total[-777:] * SCALE
            if (number, part) not in self.silent:
                mean = yield ReduceOp.MEAN, {"of": gradients["bias"][:9] * np.float32(part + number + 0.1)}
                gradients["mean"][:9] += mean["of"]
        return told

    def compute(self, number, part, values, gradients, rows):
        """All parts side by side, in one process; the twin asks for one after another."""
        scratch = {
            place: gradients if place == part else {name: each.copy() for name, each in gradients.items()}
            for place in range(self.parts)
        }
        running = {place: self.calls(number, place, values, scratch[place]) for place in scratch}
        results, told = dict.fromkeys(running), {}
        while running:
            asked = {}
            for place in list(running):
                try:
                    asked[place] = running[place].send(results[place])
                except StopIteration as end:
                    told[place] = end.value
                    del running[place]
            results = dict.fromkeys(asked, _added_up(list(asked.values())))
        return told[part]

    def train(self, driver, passes, calls):
        """As `Scene.train`, with the calls of each part."""
        views = driver.store.variables

        def run(place, number, gradients, all_reduce):
            running, result = self.calls(number, place, views, gradients), None
            count = 0
            while True:
                try:
                    asked = running.send(result)
                except StopIteration as end:
                    return end.value
                passes(f"before call {count}", {})
                result = all_reduce(*asked)
                passes(f"after call {count}", {})
                count += 1

        def beside(replica, part):
            number, place = divmod(part, self.parts)

            def work():
                examples, sums, _ = run(place, number, replica.gradients, replica.all_reduce)
                replica.commit(0.0, examples, sums)

            return work

        def places(slot):
            gradients = driver.gradients(driver.place_in(slot)).variables
            return gradients, gradients

        calls.compute = beside

        def compute(part, place):
            number, slot = divmod(part, self.parts)

            def all_reduce(op, value):
                return calls.all_reduce(slot, places, op, value)

            told = run(slot, number, driver.gradients(place).variables, all_reduce)
            calls.finish(slot, told[0], places)
            return told

        seen = train(self, driver, passes, compute)
        calls.close()
        return seen


def _added_up(asked):
    """The result of one call of all parts, given in their order."""
    if not asked:
        return None
    op, form = asked[0]
    values = [value["of"] if isinstance(value, dict) else value for _, value in asked]
    total = values[0] + values[1] if len(values) > 1 else values[0]
    for value in values[2:]:
        total = total + value
    if op is ReduceOp.MEAN:
        total = total / np.float32(len(values))
    return {"of": total} if isinstance(form, dict) else total


@pytest.mark.parametrize("hosts", [[[0, 1, 2]], [[0, 1], [2]], [[0], [1], [2]]], ids=str)
def test_the_bits_are_those_of_one_process_wherever_the_parts_are(hosts):
    """One part has no examples: nobody waits for it, at any host."""
    check(Calling(examples={(1, 1): 0, (2, 2): 3}), hosts)


def test_large_values_go_between_hosts_too():
    check(Calling(steps=2, large=1500), [[0, 1], [2]])


DEATHS = {
    "a replica": ([[0, 1], [2]], (1,)),
    "a host": ([[0, 1], [2]], (2,)),
    "the leader's host": ([[0], [1], [2]], (0,)),
    "all hosts but one": ([[0], [1], [2]], (0, 2)),
}


@pytest.mark.parametrize(
    ("death", "point"), each_with_one([*DEATHS], ["before call 0", "before call 1", "after call 1"])
)
def test_the_step_of_a_death_is_finished_by_those_who_are_left(death, point):
    hosts, victims = DEATHS[death]
    check(Calling(certain=False), hosts, dict.fromkeys(victims, Death(2, point)))


@pytest.mark.parametrize("silent", [0, 1])
def test_a_part_that_ends_without_a_call_of_others_is_named_at_every_host(silent):
    _, seen = start(Calling(replicas=2, parts=2, silent=frozenset({(1, silent)})), [[0], [1]], {})
    for rank, said in seen.items():
        assert f"part {silent} has ended without that call" in said, rank
