"""The facts that an agent tells: versions that must be equal, and the address of its host."""

import errno
import os
from importlib.metadata import version

import pytest

from dtrain.config import Host, NetworkSection
from dtrain_cli.agent.driver import reached_at, welcome
from dtrain_cli.agent.messages import HostFacts
from dtrain_cli.fleet.host_rules import HERE, address_of, unfit
from dtrain_cli.fleet.link import HostError

ADDRESSES = {"lo": ["127.0.0.1/8"], "eth0": ["10.0.0.7/24", "fe80::1/64"], "ib0": ["192.168.5.7/16"]}


def told(**facts):
    own = {"version": version("dtrain"), "python": HERE, "executable": "/py", "host": "x"}
    return HostFacts(
        **{
            **own,
            "monotonic_s": 1.0,
            "wall_s": 9.0,
            "cores": 2,
            "reached_at": "10.0.0.7",
            "addresses": ADDRESSES,
            **facts,
        }
    )


def test_other_versions_are_refused_with_both_named():
    assert unfit("h1", told()) is None
    assert "h1: /py has dtrain 0.0.1 there" in unfit("h1", told(version="0.0.1"))
    assert "Python 2.7, and this is " + HERE in unfit("h1", told(python="2.7"))


def test_a_host_without_room_for_a_run_is_refused(monkeypatch, tmp_path):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "not" / "yet"))
    assert welcome({}).no_room is None
    monkeypatch.setattr(os, "posix_fallocate", full)
    facts = welcome({})
    assert unfit("h1", facts) == f"h1: No space left on device in {tmp_path}; make room there"
    assert unfit("h1", told(no_room="No space left on device in /s")).startswith("h1: No space left")


def test_this_host_introduces_itself():
    facts = welcome({"SSH_CONNECTION": "10.0.0.1 5000 10.0.0.2 22"})
    assert facts.reached_at == "10.0.0.2"
    assert unfit("here", facts) is None
    assert facts.addresses["lo"]
    assert welcome({"SLURM_CPUS_ON_NODE": "1"}).cores == 1


@pytest.mark.parametrize(
    ("connection", "address"),
    [("a 1 fe80::2%eth0 22", "fe80::2"), ("", None), ("nonsense", None)],
)
def test_the_address_at_which_the_login_came_in(connection, address):
    assert reached_at(connection) == address


@pytest.mark.parametrize(
    ("host", "network", "address"),
    [
        (Host("h1"), NetworkSection(), "10.0.0.7"),
        (Host("h1", address="1.2.3.4"), NetworkSection(interface="ib0"), "1.2.3.4"),
        (Host("h1"), NetworkSection(interface="192.168.0.0/16"), "192.168.5.7"),
        (Host("h1"), NetworkSection(interface="ib0"), "192.168.5.7"),
    ],
)
def test_a_hosts_address(host, network, address):
    assert address_of(host, told(), network, alone=False) == address


def test_an_address_that_is_not_there_is_a_sentence():
    with pytest.raises(HostError, match=r"^h1: it has no address in 172\.16\.0\.0/12; it has lo 127"):
        address_of(Host("h1"), told(), NetworkSection(interface="172.16.0.0/12"), alone=False)
    with pytest.raises(HostError, match=r"^h1: its address is not known"):
        address_of(Host("h1"), told(reached_at=None), NetworkSection(), alone=False)
    assert address_of(Host("h1"), told(reached_at=None), NetworkSection(), alone=True) == "127.0.0.1"
