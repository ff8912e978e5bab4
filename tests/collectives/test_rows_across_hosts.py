"""Tables over several hosts, of which gradients list rows: the bits are those of a server, whoever dies.

*Rows of tables* (docs/design/collectives.md#rows-of-tables).
"""

import multiprocessing
import os
import signal

import pytest
from collectives.members import Death, check
from collectives.scene import WITH_TABLES, Scene
from row_by_row import NIGHT, each_with_one

from dtrain.config.choices import Weighting
from dtrain.errors import PeerLostError
from dtrain.learning import optimizers
from dtrain.roles.collective.rules import Rules
from dtrain.roles.collective.sums_over_hosts import RowExchange
from dtrain.variables import VariableSpec

RULES = {
    "sgd": optimizers.SGD(0.1),
    "momentum": optimizers.SGD(0.1, momentum=0.9),
    "adagrad": optimizers.Adagrad(0.1),
    "adam": optimizers.Adam(0.01, use_ema=True),
    "legacy momentum": optimizers.legacy.SGD(0.1, momentum=0.9),
    "legacy nadam": optimizers.legacy.Nadam(0.01),
    "sgd, clipnorm": optimizers.SGD(0.1, clipnorm=0.01),
    "adagrad, global_clipnorm": optimizers.Adagrad(0.1, global_clipnorm=0.02),
    "adam, clipnorm": optimizers.Adam(0.01, clipnorm=0.01),
    "legacy adam, global_clipnorm": optimizers.legacy.Adam(0.01, global_clipnorm=0.02),
}
RULES_BY_DAY = ["sgd", "adam", "adagrad, global_clipnorm", "adam, clipnorm", "legacy nadam"]
"""strategies/test_bits_of_tables.py has nearly all over hosts of threads."""
TABLES_ALONE = (VariableSpec("table", (40, 3), "float32", sparse=True),)
LARGE = (VariableSpec("large", (60_000, 8), "float32", sparse=True), *WITH_TABLES)
"""A list of it takes more than a segment."""


@pytest.mark.parametrize("rule", RULES if NIGHT else RULES_BY_DAY)
def test_the_bits_are_those_of_a_server_for_every_rule(rule):
    check(Scene(RULES[rule], variables=WITH_TABLES, steps=3, block_elements=4), [[0, 1], [2]])


VARIABLES = {"tables": WITH_TABLES, "tables alone": TABLES_ALONE}


@pytest.mark.parametrize(
    ("hosts", "variables"),
    each_with_one([[[0], [1], [2]], [[0, 2], [1]], [[0, 1, 2]]], [*VARIABLES]),
    ids=str,
)
def test_so_they_are_wherever_the_replicas_are(hosts, variables):
    check(Scene(optimizers.Adagrad(0.1, clipnorm=0.01), variables=VARIABLES[variables]), hosts)


@pytest.mark.parametrize(
    "scene",
    [
        Scene(rules=Rules(weighting=Weighting.EXAMPLES), examples={(0, 1): 3, (1, 2): 5, (2, 0): 0}),
        Scene(examples={(1, 1): 0}, poisoned=frozenset({(2, 0)})),
        Scene(examples={(1, part): 0 for part in range(3)}),
        Scene(optimizers.SGD(0.1), parts=5),
    ],
    ids=["weighted", "empty and refused", "a step without examples", "several parts a replica"],
)
def test_so_they_are_with_weights_empty_and_refused_parts(scene):
    scene.variables = WITH_TABLES
    check(scene, [[0, 1], [2]])


def test_lists_of_several_segments_come_whole():
    check(Scene(optimizers.SGD(0.1), variables=LARGE, steps=2), [[0], [1], [2]])


DEATHS = {
    "a replica": ([[0, 1], [2]], (1,), {0, 2}),
    "a host": ([[0, 1], [2]], (2,), {0, 1}),
    "the leader's host": ([[0, 1], [2]], (0, 1), {2}),
    "all hosts but one": ([[0], [1], [2]], (0, 2), {1}),
    "the first of each host": ([[0, 1], [2, 3]], (0, 2), {1, 3}),
}


@pytest.mark.parametrize(
    ("death", "rule"), each_with_one([*DEATHS], ["sgd", "legacy nadam", "adagrad, global_clipnorm"])
)
def test_the_step_of_a_death_is_finished_by_those_who_are_left(death, rule):
    hosts, victims, left = DEATHS[death]
    ranks = sum(map(len, hosts))
    scene = Scene(RULES[rule], ranks, max(3, ranks), variables=WITH_TABLES, certain=False, block_elements=4)
    check(scene, hosts, dict.fromkeys(victims, Death(2, "in gradient")), left)


MOMENTS = ["before send", "after send", "after _receive_list", "after receive"]


def at(monkeypatch, method, host, act):
    """Act when a host comes to a method of its exchange of rows in the second step, before and after it.

    Hosts are forked, so each counts for itself.
    """
    original = getattr(RowExchange, method)
    step = 0

    def begun(self, begin, *words):
        nonlocal step
        step = begin.step
        return sent(self, begin, *words)

    def watched(self, *words):
        now = (step if method != "send" else words[0].step) == 1 and self._host == host
        if now:
            act("before", method)
        result = original(self, *words)
        if now:
            act("after", method)
        return result

    sent = watched if method == "send" else RowExchange.send
    monkeypatch.setattr(RowExchange, "send", begun)
    if method != "send":
        monkeypatch.setattr(RowExchange, method, watched)


@pytest.mark.parametrize(("moment", "host"), each_with_one(MOMENTS, [0, 1, 2]))
def test_a_host_that_dies_among_its_lists_leaves_the_step_to_the_others(monkeypatch, moment, host):
    when, method = moment.split()

    def dies(now, _):
        if now == when:
            os.kill(os.getpid(), signal.SIGKILL)

    at(monkeypatch, method, host, dies)
    scene = Scene(RULES["legacy nadam"], variables=WITH_TABLES, certain=False, block_elements=4)
    seen = check(scene, [[0], [1], [2]], left={0, 1, 2} - {host})
    assert host not in seen


@pytest.mark.parametrize(("moment", "host"), each_with_one(MOMENTS, [0, 1]))
def test_another_replica_reduces_for_a_host_whose_first_one_dies_among_its_lists(monkeypatch, moment, host):
    when, method = moment.split()
    dead = multiprocessing.Value("i", 0)

    def dies_once(now, _):
        if now == when and not dead.value:
            dead.value = 1
            os.kill(os.getpid(), signal.SIGKILL)

    at(monkeypatch, method, 2 * host, dies_once)
    scene = Scene(RULES["legacy nadam"], 4, 4, variables=WITH_TABLES, certain=False, block_elements=4)
    seen = check(scene, [[0, 1], [2, 3]], left={0, 1, 2, 3} - {2 * host})
    assert 2 * host not in seen


@pytest.mark.parametrize(("method", "host"), each_with_one(["send", "_receive_list"], [0, 1]))
def test_lists_whose_stream_is_lost_come_again_in_the_next_attempt(monkeypatch, method, host):
    lost = multiprocessing.Value("i", 0)

    def loses(now, _):
        if now == "after" and lost.value < 2:
            lost.value += 1
            raise PeerLostError("the stream is lost")

    at(monkeypatch, method, host, loses)
    check(Scene(RULES["adam, clipnorm"], variables=WITH_TABLES), [[0], [1], [2]])
    assert lost.value == 2
