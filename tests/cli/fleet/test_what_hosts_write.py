"""A host of a run may write what is its own: nothing of the user's, of the launcher's, or of other hosts' tasks."""

import json
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from dtrain.cluster import Role, TaskId
from dtrain.config import ClusterSection, MultiWorkerMirroredSection, RunSpec, read_hosts
from dtrain.messages.membership import TaskStatus
from dtrain.process.start_protocol import Exited
from dtrain.runs.files import FailureRecord, RunFiles, read_record, write_record
from dtrain_cli.agent import copies
from dtrain_cli.agent.copies import FetchedFiles, made_parts
from dtrain_cli.agent.messages import Appended, MadePart, Replaced
from dtrain_cli.fleet import mirror
from dtrain_cli.fleet.locations import Locations
from dtrain_cli.fleet.mirror import Mirror
from dtrain_cli.fleet.target import FleetRun, FleetTarget, apart_text, earlier, remember
from dtrain_cli.plan.run_plan import Workload


@pytest.fixture
def here(tmp_path, monkeypatch):
    """The user's working directory."""
    monkeypatch.setenv("DTRAIN_RUNS_DIR", str(tmp_path / "state" / "runs"))
    (tmp_path / "run").mkdir()
    (tmp_path / "here").mkdir()
    return tmp_path / "here"


def arriving(here, run_dir, **made):
    """Fetch files as the end of a run does; names have `__` for a slash."""
    files = FetchedFiles(here, second=run_dir / "fetched", brought=earlier(here))
    for name, text in made.items():
        files.write(MadePart(name.replace("__", "/"), text.encode(), last=True))
    files.drop()
    remember(here, files.brought)
    return files


def test_nothing_that_was_there_is_replaced_and_no_link_leads_on(here, tmp_path):
    run_dir = tmp_path / "run"
    (here / "venv").mkdir()
    (here / "venv" / "activate").write_text("the user's")
    (here / "Makefile").write_text("the user's")
    (here / "src").mkdir()
    (here / "src" / "train").write_text("the user's")
    (here / "lib").symlink_to("src")
    (tmp_path / "elsewhere").mkdir()
    (here / "sub").mkdir()
    (here / "sub" / "link").symlink_to(tmp_path / "elsewhere")
    (here / "dangling").symlink_to(tmp_path / "elsewhere" / "new")
    hostile = {
        "venv__activate": "x",
        "Makefile": "x",
        "lib__train": "x",
        "sub__link__x": "x",
        "dangling": "x",
    }
    files = arriving(here, run_dir, **hostile, venv__new="mine", model="mine")
    assert {
        path.read_text() for path in here.rglob("*") if path.name in ("activate", "Makefile", "train")
    } == {"the user's"}
    assert list((tmp_path / "elsewhere").iterdir()) == []
    assert sorted(files.names) == ["model", "venv/new"]
    assert sorted(files.apart) == ["Makefile", "dangling", "lib/train", "sub/link/x", "venv/activate"]
    assert files.problems == []
    assert (run_dir / "fetched" / "sub" / "link" / "x").read_text() == "x"
    assert apart_text(run_dir / "fetched") == (
        f"kept apart from files of yours, in {run_dir / 'fetched'}: "
        "Makefile, dangling, lib/train, sub/link/x, venv/activate"
    )


def test_a_fetch_replaces_what_an_earlier_one_has_brought_until_somebody_changes_it(here, tmp_path):
    run_dir = tmp_path / "run"
    assert arriving(here, run_dir, model="of run 1").names == ["model"]
    assert arriving(here, run_dir, model="of run 2").names == ["model"]
    assert (here / "model").read_text() == "of run 2"
    (here / "model").write_text("changed by the user")
    assert arriving(here, run_dir, model="of run 3").apart == ["model"]
    assert (here / "model").read_text() == "changed by the user"
    assert (run_dir / "fetched" / "model").read_text() == "of run 3"
    (here / "model").unlink()
    assert arriving(here, run_dir, model="of run 4").names == ["model"]
    other = tmp_path / "other"
    other.mkdir()
    (other / "model").write_text("of run 4")  # the record is of one folder
    assert arriving(other, run_dir, model="of run 5").apart == ["model"]


def test_a_record_of_fetches_that_others_may_write_is_not_believed(here, tmp_path):
    arriving(here, tmp_path / "run", model="of run 1")
    (tmp_path / "state" / "fetched").chmod(0o777)
    assert earlier(here) == {}


def test_a_file_that_appears_while_another_arrives_stays(here):
    files = FetchedFiles(here)
    files.write(MadePart("model", b"of the", last=False))
    (here / "model").write_text("the user's")
    files.write(MadePart("model", b" host", last=True))
    assert [path.read_text() for path in here.iterdir()] == ["the user's"]
    assert files.problems == ["model cannot be written: a file is there that no fetch has brought"]


@pytest.mark.parametrize(
    "parts",
    [
        [MadePart("big", b"x" * 40_000, last=False)] * 3,
        [MadePart("slow", b"", last=False)] * 30,
        [MadePart(f"many{number}", b"", last=True) for number in range(9)],
        [MadePart(f".hidden{number}", b"", last=True) for number in range(9)],
    ],
)
def test_a_host_fills_neither_the_disk_nor_the_patience(here, monkeypatch, parts):
    monkeypatch.setattr(copies, "FILES_MAX", 8)
    files = FetchedFiles(here, bytes_max=100_000)
    for part in parts:
        files.write(part)
    assert files.full
    assert files.problems[-1] == "more than 8 files or 0 MiB have come; the rest stays where it is"
    assert len(files.problems) <= 9
    assert sum(path.stat().st_size for path in here.iterdir()) <= 100_000
    assert not list(here.glob(".*"))


def test_descriptors_are_closed_whatever_arrives(here):
    (here / "file").write_text("x")
    before = len(list(Path("/proc/self/fd").iterdir()))
    files = FetchedFiles(here)
    for name in ("a/b/c", "file/d", "file", "../x", "a/b"):
        files.write(MadePart(name, b"x", last=False))
        files.write(MadePart(name, b"x", last=True))
    files.drop()
    assert files.names == ["a/b/c"]
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_what_the_agent_sends_is_what_is_fetched_over_an_earlier_fetch(here, tmp_path):
    """The model of a first run is code of the second one, whose program replaces it."""
    work = tmp_path / "work"
    work.mkdir()
    for text in ("of run 1", "of run 2"):
        (work / "model").write_text(text)
        files = FetchedFiles(here, second=tmp_path / "run" / "fetched", brought=earlier(here))
        for part in made_parts(work):
            if isinstance(part, MadePart):
                files.write(part)
        remember(here, files.brought)
        assert (here / "model").read_text() == text
    assert apart_text(tmp_path / "run" / "fetched") is None


@pytest.fixture
def locations():
    """A chief and a server on h1, two workers on h2."""
    locations = Locations(read_hosts("h1:2,h2:2"), {})
    locations.assign(ClusterSection(chief=1, worker=2, ps=1, evaluator=0), {})
    assert locations.tasks_of("h2") == [TaskId.parse("worker:0"), TaskId.parse("worker:1")]
    return locations


def test_a_host_writes_files_of_its_own_tasks_and_the_leaders_those_of_the_run(locations):
    own = ["tasks/worker-1/status.json", "tasks/worker-0/attempt-0/output.log"]
    run = [
        "metrics.jsonl",
        "spec.json",
        "tasks/ps-0/kill.json",
        "tasks/worker-0/kill.json",
    ]
    joined = ["tasks/worker-7/joined.json", "tasks/worker-7/status.json"]
    assert [locations.may_write("h2", path) for path in [*own, *run, *joined]] == [True] * 2 + [False] * 6
    assert [locations.may_write("h1", path) for path in [*own, *run, *joined]] == [False] * 2 + [True] * 6


def test_without_servers_every_host_with_a_replica_may_come_to_lead():
    locations = Locations(read_hosts("h1:2,h2:1,h3:1"), {})
    locations.assign(ClusterSection(chief=1, worker=1, ps=0, evaluator=1), {Role.WORKER: "h2"})
    hosts = ("h1", "h2", "h3")
    assert [locations.may_write(host, "metrics.jsonl") for host in hosts] == [True, True, False]
    status = "tasks/worker-0/status.json"
    assert [locations.may_write(host, status) for host in hosts] == [False, True, False]


def test_a_host_has_no_word_about_tasks_of_others(tmp_path):
    cluster = ClusterSection(chief=1, worker=2, ps=0, evaluator=0)
    workload = Workload(tmp_path / "p.py", (), tmp_path)
    hosts = read_hosts("h1:1,h2:2")
    run = FleetRun("run", RunSpec(cluster=cluster), hosts, workload, RunFiles(tmp_path), {}, "d", None)
    target = FleetTarget(run, None, SimpleNamespace(read=list), lambda text: None)
    target._locations.assign(cluster, {})
    log = "tasks/chief-0/attempt-0/output.log"
    for host in ("h2", "h1"):
        target._mirror.write(host, Appended(log, host.encode()), 0.0)
        target._handle_answer(host, Exited("chief:0", 0, 1, 0))
    target._handle_answer("h1", Exited("nonsense", 0, 1, 0))
    assert (tmp_path / log).read_bytes() == b"h1"
    assert [event.task for event in target._queued] == ["chief:0"]


def test_no_agent_replaces_the_launchers_spec_but_its_training(tmp_path):
    files = RunFiles(tmp_path)
    own = RunSpec(name="mine", python="/usr/bin/python3")
    write_record(files.spec, own)
    copies = Mirror(tmp_path, lambda *_: True)
    wished = MultiWorkerMirroredSection()
    told = RunSpec(name="other", python="/x/evil", environment={"LD_PRELOAD": "/x/evil"}, training=wished)
    copies.write("h1", Replaced("spec.json", msgspec.json.encode(told)), 0.0)
    for data in (b"{", b"[]", b'{"training": 7}', b'{"python": 7}'):
        with pytest.raises(ValueError, match=r"JSON|truncated|Expected"):
            Replaced("spec.json", data)
    found = read_record(files.spec, RunSpec)
    assert (found.name, found.python, found.environment) == ("mine", "/usr/bin/python3", {})
    assert isinstance(found.training, MultiWorkerMirroredSection)


def test_a_hosts_logs_and_records_have_bounds(tmp_path, monkeypatch):
    monkeypatch.setattr(mirror, "HOST_BYTES_MAX", 1000)
    monkeypatch.setattr(mirror, "HOST_FILES_MAX", 6)
    copies = Mirror(tmp_path, lambda *_: True)
    log = tmp_path / "tasks/ps-0/attempt-0/output.log"
    for _ in range(20):
        copies.write("h1", Appended(str(log.relative_to(tmp_path)), b"x" * 99 + b"\n"), 0.0)
    assert log.read_bytes().count(b"\n") == 12
    assert log.read_text().splitlines()[-1].startswith("dtrain: no more output of this host is copied")
    copies.write("h1", Appended("metrics.jsonl", b"{}\n"), 0.0)
    assert not (tmp_path / "metrics.jsonl").exists()
    said = msgspec.json.encode(TaskStatus("ps:0", 1, "h1", step=1))
    copies.write("h1", Replaced("tasks/ps-0/status.json", said), 0.0)  # what is small still comes
    assert json.loads((tmp_path / "tasks/ps-0/status.json").read_text())["step"] == 1
    failure = msgspec.json.encode(FailureRecord("ps:0", "boom"))
    for number in range(20):
        copies.write("h2", Replaced(f"tasks/ps-0/attempt-{number}/failure.json", failure), 0.0)
    assert len(list(tmp_path.glob("tasks/ps-0/attempt-*/failure.json"))) == 6
    status = "tasks/ps-1/status.json"
    copies.write("h3", Replaced(status, said), 0.0)
    for number in range(20):
        more = TaskStatus("ps:1", 1, "h3", step=number, message="x" * 100_000 * number)
        copies.write("h3", Replaced(status, msgspec.json.encode(more)), 0.0)
    assert (tmp_path / status).stat().st_size <= mirror.RECORD_BYTES_MAX
