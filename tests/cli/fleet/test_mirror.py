"""The launcher's copies: whole, by its own clock, and of no other file than a task's."""

import json
import time

import msgspec

from dtrain.messages.membership import TaskStatus
from dtrain_cli.agent.messages import Appended, Replaced
from dtrain_cli.fleet.agents import AgentHost
from dtrain_cli.fleet.mirror import Mirror, rebased

STATUS = "tasks/worker-0/status.json"


def test_moments_are_told_by_the_clock_of_the_launcher(tmp_path):
    mirror = Mirror(tmp_path, lambda *_: True)
    member = AgentHost(None)
    member.heard(5000.0, 100.0)
    member.heard(5001.0, 100.9)  # a faster answer
    member.heard(5002.0, 102.3)
    said = TaskStatus("worker:0", 7, "h1", step=3, monotonic_s=5002.0)
    mirror.write("h1", Replaced(STATUS, msgspec.json.encode(said)), member.offset_s)
    copy = json.loads((tmp_path / STATUS).read_text())
    assert round(copy["monotonic_s"], 3) == 101.9
    assert copy["waiting_monotonic_s"] is None
    assert copy["progress_monotonic_s"] == 0.0
    said.step, said.monotonic_s = 4, 5003.0
    mirror.write("h1", Replaced(STATUS, msgspec.json.encode(said)), member.offset_s)
    copy = json.loads((tmp_path / STATUS).read_text())
    assert (copy["step"], round(copy["monotonic_s"], 3)) == (4, 102.9)


def test_the_time_of_a_failure_is_that_of_this_machine():
    now_s = time.monotonic()
    told = rebased({"time": "1999-01-01T00:00:00+00:00", "monotonic_s": 50.0}, now_s - 50.0)
    assert told["time"][:4] == str(time.gmtime().tm_year)


def test_an_agent_writes_nothing_but_a_tasks_files(tmp_path):
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    mirror = Mirror(run_dir, lambda *_: True)
    for path in ("../stolen", "run.json", "join.json", "tasks/ps-0/attempt-0/../../../run.json"):
        mirror.write("h1", Replaced(path, b"{}"), 0.0)
        mirror.write("h1", Appended(path, b"x"), 0.0)
    assert list(run_dir.rglob("*")) == []
    assert not (tmp_path / "stolen").exists()


def test_pieces_of_a_log_are_joined_and_counted(tmp_path):
    mirror = Mirror(tmp_path, lambda *_: True)
    log = "tasks/ps-0/attempt-0/output.log"
    for piece in (b"one ", b"two"):
        mirror.write("h1", Appended(log, piece), 0.0)
    assert (tmp_path / log).read_bytes() == b"one two"
    assert mirror.sizes == {"h1": {log: 7}}
