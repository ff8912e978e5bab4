"""`dtrain check --hosts`: one table of hosts that work, sentences for those that do not, and nothing left."""

from collections.abc import Iterator

import pytest
from hosts.rig import Rig, Ways, needs_hosts
from launching import Command, Launcher, wait_until

pytestmark = needs_hosts


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with Rig(tmp_path_factory.mktemp("rig"), 3, Ways(banner="Welcome to this host")) as rig:
        yield rig


def check(launcher: Launcher, rig: Rig, *words: str) -> Command:
    return launcher.dtrain("check", "--hosts", *words, wrapper=rig.wrapper("h0"))


def test_hosts_that_can_run_a_cluster_are_one_table(launcher, rig):
    command = check(launcher, rig, "h1,h2,h3", "--set", "network.ports=20000-20003")
    assert command.end() == 0, command.err
    lines = [line.split() for line in command.out.splitlines()]
    assert [line[0] for line in lines[1:4]] == ["h1", "h2", "h3"]
    assert [line[-2] for line in lines[1:4]] == [rig.address(name) for name in rig.names]
    assert len(lines) == 4
    assert max(map(len, command.out.splitlines())) <= 80
    wait_until(lambda: not any(rig.processes(name) for name in rig.names), "the agents to end")


def test_every_host_that_cannot_is_named_with_its_reason(launcher, rig):
    rig.run("h2", "ip", "route", "add", "blackhole", f"{rig.address('h3')}/32")
    command = check(launcher, rig, "h1,h2,h3,nowhere")
    assert command.end() == 125
    assert "nowhere: it is no name that ssh can resolve" in command.err
    assert f"h2 ({rig.address('h2')}) cannot reach h3 ({rig.address('h3')})" in command.err
    assert "h1 (" not in command.err
    lines = [line.split() for line in command.out.splitlines()]
    assert lines[4][:2] == ["nowhere", "no"]


def test_an_interpreter_without_dtrain_and_wrong_words_are_said(launcher, rig):
    without = check(launcher, rig, "h1", "--set", "python=/bin/false")
    assert without.end() == 125
    assert "h1: " in without.err
    wrong = check(launcher, rig, "h1,,h2")
    assert wrong.end() == 2
    assert "expected hosts such as" in wrong.err
