"""Tables whose gradients are given as rows: every synchronous strategy gives the bits of parameter servers.

*Determinism* (docs/design/protocol.md#determinism), *Rows of tables* (docs/design/collectives.md#rows-of-tables).
"""

import pytest
from fleet_of_hosts import FleetOfHosts
from in_memory import InMemoryCluster
from replica_fleet import ReplicaFleet
from strategies import test_bits_of_threads as threads

import dtrain as dt
from dtrain.config import CentralStorageSection, MirroredSection
from dtrain.strategies.in_process import shared_update
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


@pytest.mark.parametrize("rule", RULES)
def test_every_synchronous_strategy_gives_the_same_bits(rule, tmp_path, monkeypatch):
    monkeypatch.setattr(fitting, "TABLE_BYTES", 1)
    monkeypatch.setattr(threads, "RULES", RULES)
    monkeypatch.setattr(shared_update, "BLOCK_ELEMENTS", 100)
    cluster = InMemoryCluster(tmp_path / "servers", REPLICAS, servers=1, deterministic=True)
    expected, *_ = cluster.run(lambda: threads.built(rule), threads.body)
    folder = tmp_path / "replicas"
    folder.mkdir()
    found, *_ = ReplicaFleet(folder, REPLICAS, deterministic=True).run(
        lambda: threads.built(rule), threads.body
    )
    threads.assert_same(found, expected)
    for section in (MirroredSection, CentralStorageSection):
        threads.assert_same(
            threads.in_threads(section(replicas=REPLICAS, deterministic=True), rule), expected
        )


@pytest.mark.parametrize("layout", [(0, 1), (0, 0, 1), (0, 1, 2)], ids=str)
@pytest.mark.parametrize("rule", RULES)
def test_several_hosts_give_the_bits_of_one(rule, layout, tmp_path, monkeypatch):
    monkeypatch.setattr(fitting, "TABLE_BYTES", 1)
    monkeypatch.setattr(threads, "RULES", RULES)
    replicas = len(layout)
    cluster = InMemoryCluster(tmp_path / "servers", replicas, servers=1, deterministic=True)
    expected, *_ = cluster.run(lambda: threads.built(rule), threads.body)
    folder = tmp_path / "hosts"
    folder.mkdir()
    with monkeypatch.context() as patch:
        fleet = FleetOfHosts(patch, folder, layout, deterministic=True)
        found, *_ = fleet.run(lambda: threads.built(rule), threads.body)
    threads.assert_same(found, expected)
