"""The interface that the supervisor knows of a launch target, and what implements it."""

import inspect
import os
import signal
import time
from contextlib import closing
from pathlib import Path

import pytest
from cli.launch.fake_launch import FakeTarget
from row_by_row import every_row

from dtrain.cluster import TaskId
from dtrain.config import ClusterSection
from dtrain.process.start_protocol import Exited, Refused, Started
from dtrain_cli.fleet.target import FleetTarget
from dtrain_cli.plan.run_plan import TaskLaunch
from dtrain_cli.targets.cold_start import LifeLine
from dtrain_cli.targets.fork_server import ForkServer
from dtrain_cli.targets.local import LocalTarget
from dtrain_cli.targets.target import Target

METHODS = [name for name, _ in inspect.getmembers(Target, inspect.isfunction) if not name.startswith("_")]
PATIENCE_S = 60.0


@every_row("kind", [LocalTarget, FleetTarget, FakeTarget])
@every_row("name", METHODS)
def test_every_target_takes_the_same_arguments(kind, name):
    expected = inspect.signature(getattr(Target, name)).parameters
    assert list(inspect.signature(getattr(kind, name)).parameters) == list(expected)


@pytest.fixture
def target():
    with closing(LocalTarget(ForkServer(LifeLine(), bare=True))) as target:
        yield target


def command(folder: Path, *words: str) -> TaskLaunch:
    return TaskLaunch(
        task=TaskId.parse("worker:0"),
        address=None,
        program=None,
        command=words,
        arguments=words[1:],
        environment={},
        cwd=folder,
        run_dir=folder,
        needs_grpc=False,
    )


def next_event(target: LocalTarget):
    deadline_s = time.monotonic() + PATIENCE_S
    while not (events := target.events(deadline_s)):
        assert time.monotonic() < deadline_s, "no event came"
    [event] = events
    return event


def test_a_handle_signals_the_whole_group_of_a_task_and_none_after_its_end(target, tmp_path):
    handle = target.start(command(tmp_path, "sh", "-c", "sleep 1001 & sleep 1002"))
    handle.signal(signal.SIGKILL)  # nothing is there yet
    started = next_event(target)
    assert isinstance(started, Started)
    assert handle.pid == started.pid
    handle.signal(signal.SIGTERM)
    ended = next_event(target)
    assert isinstance(ended, Exited)
    assert (ended.task, ended.status, ended.exit_code) == ("worker:0", -signal.SIGTERM, 143)
    assert handle.pid is None
    with pytest.raises(ProcessLookupError):
        os.killpg(started.pid, 0)
    handle.signal(signal.SIGTERM)


def test_a_command_that_cannot_be_executed_is_refused(target, tmp_path):
    target.start(command(tmp_path, "/no/such/program"))
    refused = next_event(target)
    assert isinstance(refused, Refused)
    assert "/no/such/program" in refused.reason


def test_events_come_at_once_when_what_wakes_the_target_can_be_read(target):
    reading_end, writing_end = os.pipe()
    with open(reading_end) as source, open(writing_end, "w") as other:
        target.wake_on(source)
        other.write("x")
        other.flush()
        assert target.events(time.monotonic() + 1e6) == []


def test_closing_kills_what_is_left_and_lets_the_ports_go(target, tmp_path):
    section = ClusterSection(worker=1)
    addresses = target.hold_addresses(section)
    target.start(command(tmp_path, "sleep", "1001"))
    started = next_event(target)
    target.close()
    with pytest.raises(ProcessLookupError):
        os.kill(started.pid, 0)
    again = ClusterSection(worker=(addresses.address(TaskId.parse("worker:0")),))
    with closing(LocalTarget(ForkServer(LifeLine(), bare=True))) as other:
        assert other.hold_addresses(again) == addresses
