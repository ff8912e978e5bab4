"""Tables whose gradients are given as rows: every synchronous strategy gives the bits of parameter servers.

*Determinism* (docs/design/protocol.md#determinism), *Rows of tables* (docs/design/collectives.md#rows-of-tables).
"""

import functools

import pytest
from fleet_of_hosts import FleetOfHosts
from in_memory import InMemoryCluster
from replica_fleet import ReplicaFleet
from strategies import test_bits_of_threads as threads

import dtrain as dt
from dtrain.config import CentralStorageSection, MirroredSection
from dtrain.parameters import store
from dtrain.strategies.in_process import thread_replicas
from dtrain.training.fits import fitting

REPLICAS = 3
RULES = {
    "sgd": lambda: dt.optimizers.SGD(0.05),
    "momentum": lambda: dt.optimizers.SGD(0.05, momentum=0.9),
    "adam": lambda: dt.optimizers.Adam(0.01, use_ema=True, ema_momentum=0.7),
    "adagrad, clipvalue": lambda: dt.optimizers.Adagrad(0.1, clipvalue=0.01),
    "sgd, clipnorm": lambda: dt.optimizers.SGD(0.05, clipnorm=0.05),
    "adagrad, global_clipnorm": lambda: dt.optimizers.Adagrad(0.1, global_clipnorm=0.1),
    "adam, clipnorm": lambda: dt.optimizers.Adam(0.01, clipnorm=0.05),
    "legacy momentum": lambda: dt.optimizers.legacy.SGD(0.05, momentum=0.9),
    "legacy nadam": lambda: dt.optimizers.legacy.Nadam(0.01),
}


OF_HOSTS = [
    *(((0, 0, 1), rule) for rule in RULES),
    *(((0, 1, 2), rule) for rule in ("momentum", "adam, clipnorm", "legacy nadam")),
    *(((0, 1), rule) for rule in ("sgd", "adagrad, global_clipnorm")),
]
"""The host of each replica, and a rule. Every rule goes over two hosts, of which one has two replicas."""


@pytest.fixture(scope="module")
def on_servers(tmp_path_factory):
    """What parameter servers come to, by rule and number of replicas. Tables as small as these are updated in rows."""

    @functools.cache
    def found(rule, replicas):
        folder = tmp_path_factory.mktemp("servers")
        cluster = InMemoryCluster(folder, replicas, servers=1, deterministic=True)
        return cluster.run(lambda: threads.built(rule), threads.body)[0]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fitting, "TABLE_BYTES", 1)
        patch.setattr(threads, "RULES", RULES)
        patch.setattr(store, "BLOCK_ELEMENTS", 100)
        patch.setattr(thread_replicas, "SHARED_ELEMENTS", 0)
        yield found


@pytest.mark.parametrize("rule", RULES)
def test_every_synchronous_strategy_gives_the_same_bits(rule, on_servers, tmp_path):
    expected = on_servers(rule, REPLICAS)
    found, *_ = ReplicaFleet(tmp_path, REPLICAS, deterministic=True).run(
        lambda: threads.built(rule), threads.body
    )
    threads.assert_same(found, expected)
    for section in (MirroredSection, CentralStorageSection):
        threads.assert_same(
            threads.in_threads(section(replicas=REPLICAS, deterministic=True), rule), expected
        )


@pytest.mark.parametrize(("layout", "rule"), OF_HOSTS, ids=str)
def test_several_hosts_give_the_bits_of_one(layout, rule, on_servers, tmp_path, monkeypatch):
    expected = on_servers(rule, len(layout))
    fleet = FleetOfHosts(monkeypatch, tmp_path, layout, deterministic=True)
    found, *_ = fleet.run(lambda: threads.built(rule), threads.body)
    threads.assert_same(found, expected)
