"""What Slurm says and is told: allocations, scripts, reports of jobs. No Slurm is needed."""

import shutil
import subprocess
from datetime import datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from row_by_row import every_row

from dtrain.config import (
    ROLES,
    ClusterSection,
    Host,
    NetworkSection,
    RunSpec,
    SlurmSection,
    read_hosts,
)
from dtrain.config.targets import ServerNodesSection
from dtrain.errors import SpecError
from dtrain.runs.files import RunFiles
from dtrain_cli.fleet.link import HostError
from dtrain_cli.launch import slurm
from dtrain_cli.launch.options import LaunchOptions
from dtrain_cli.launch.slurm import UNKNOWN_MAX, JobOfRun, job_of
from dtrain_cli.placement import place
from dtrain_cli.targets import slurm_jobs
from dtrain_cli.targets.slurm_allocation import Allocation, read_allocation
from dtrain_cli.targets.slurm_jobs import JobScript, read_job, read_node_addresses

GOLDEN = Path(__file__).parent / "job.sh"
HETEROGENEOUS = Path(__file__).parent / "heterogeneous_job.sh"
NOW = datetime(2026, 11, 22, 12, 0, 0)


def test_an_allocation_is_read_from_its_variables():
    found = read_allocation(
        {
            "SLURM_JOB_ID": "17",
            "SLURM_JOB_NODELIST": "n[01-03,7]",
            "ENVIRONMENT": "BATCH",
            "SLURM_RESTART_COUNT": "2",
        }
    )
    assert found == Allocation("17", (("n01", "n02", "n03", "n7"),), (None,), batch=True, restarts=2)
    assert found.hosts([]) == read_hosts("n01,n02,n03,n7")
    assert found.part_of("n01") is None
    assert read_allocation({}) is None


def test_slots_are_what_the_job_says():
    found = read_allocation(
        {"SLURM_JOB_ID": "17", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_NTASKS_PER_NODE": "4"}
    )
    assert found.hosts([]) == read_hosts("n[1-2]:4")
    assert found.hosts([Host("n2", 2, "10.0.0.2")]) == [Host("n2", 2, "10.0.0.2")]
    with pytest.raises(SpecError, match="hosts: n3 is no node of job 17, which has n1, n2"):
        found.hosts([Host("n3")])


def test_a_heterogeneous_job_has_parts():
    found = read_allocation(
        {
            "SLURM_JOB_ID": "17",
            "SLURM_JOB_NODELIST": "big1",
            "SLURM_HET_SIZE": "2",
            "SLURM_JOB_NODELIST_HET_GROUP_0": "big1",
            "SLURM_JOB_NODELIST_HET_GROUP_1": "n[1-3]",
            "SLURM_NTASKS_PER_NODE_HET_GROUP_1": "2",
        }
    )
    assert [host.host for host in found.hosts([])] == ["big1", "n1", "n2", "n3"]
    assert [found.part_of(name) for name in ("big1", "n3")] == [0, 1]
    assert [host.slots for host in found.hosts([])] == [None, 2, 2, 2]


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"SLURM_JOB_ID": "1"}, "SLURM_JOB_NODELIST is not"),
        ({"SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "n[1"}, "expected a list of hosts"),
        ({"SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "n", "SLURM_RESTART_COUNT": "x"}, "expected a number"),
    ],
)
def test_variables_that_are_not_slurm_s_are_refused(variables, message):
    with pytest.raises(SpecError, match=message):
        read_allocation(variables)


def script(**changes):
    spec = RunSpec(name="digits", cluster=ClusterSection(chief=1, worker=4, ps=2), **changes)
    command = ["/opt/python", "-P", "-m", "dtrain_cli.main", "launch", "--on", "slurm", "a program.py"]
    return JobScript(spec, command, Path("/home/me/my project"), Path("/s/digits.out"), Path("/s/digits.err"))


def check_shell(path):
    subprocess.run(["bash", "-n", path], check=True)
    if shutil.which("shellcheck"):
        subprocess.run(["shellcheck", path], check=True)


def test_the_script_is_the_golden_one():
    wishes = SlurmSection(
        nodes=4,
        time="2:00:00",
        partition="cpu",
        account="me",
        options=("--constraint=avx2", "--qos=low", "--mem-per-cpu=4G", "--comment=a b"),
        setup=("module load python/3.12", "export OMP_PROC_BIND=false"),
    )
    text = script(slurm=wishes).text()
    assert text == GOLDEN.read_text()
    check_shell(GOLDEN)


def test_hosts_of_the_spec_are_the_nodes_of_the_job():
    job = script(hosts="n[1-3],login")
    assert job.nodes == 4
    assert "--nodelist=n[1-3],login" in job.parts()[0]
    assert "--ntasks-per-node=2" in job.parts()[0]
    assert script().nodes == 1
    assert "--ntasks-per-node=7" in script().parts()[0]
    asks = SlurmSection(options=("--ntasks-per-node=32",), requeue=False, grace_s=60)
    assert [each for each in script(slurm=asks).parts()[0] if "tasks" in each] == ["--ntasks-per-node=32"]
    assert {"--no-requeue", "--signal=B:TERM@60"} <= set(script(slurm=asks).parts()[0])


def test_servers_on_nodes_of_their_own_make_a_heterogeneous_job():
    servers = ServerNodesSection(nodes=2, partition="big", options=("--mem=64G",))
    wishes = SlurmSection(
        nodes=3, time="2:00:00", partition="cpu", options=("--constraint=avx2",), servers=servers
    )
    job = script(slurm=wishes)
    assert job.nodes == 5
    assert job.text() == HETEROGENEOUS.read_text()
    check_shell(HETEROGENEOUS)


def test_a_heterogeneous_job_s_servers_stay_on_its_first_part():
    variables = {
        "SLURM_JOB_ID": "17",
        "SLURM_HET_SIZE": "2",
        "SLURM_JOB_NODELIST_HET_GROUP_0": "big[1-2]",
        "SLURM_JOB_NODELIST_HET_GROUP_1": "n[1-3]",
    }
    found = read_allocation(variables)
    cluster = ClusterSection(chief=1, worker=5, ps=3, evaluator=1)
    places = found.places(found.hosts([]), cluster, {})
    assert {str(task): host.host for task, host in place(cluster, found.hosts([]), places).items()} == {
        "chief:0": "big1",
        "evaluator:0": "big1",
        "ps:0": "big1",
        "ps:1": "big2",
        "ps:2": "big1",
        "worker:0": "n1",
        "worker:1": "n2",
        "worker:2": "n3",
        "worker:3": "n1",
        "worker:4": "n2",
    }
    assert found.places(found.hosts([]), cluster, "pack") == "pack"
    assert found.places(found.hosts([]), cluster, {"ps": "n1"})["ps"] == "n1"
    some = found.hosts([Host("n1"), Host("n2")])
    assert found.places(some, cluster, {}) == {}, "none of the first part is used"
    narrow = read_allocation({**variables, "SLURM_NTASKS_PER_NODE_HET_GROUP_1": "1"})
    assert narrow.places(narrow.hosts([]), cluster, {}) == {}, "five workers have three slots there"
    assert read_allocation({"SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "n"}).places([], cluster, {}) == {}


def test_hosts_and_servers_on_nodes_of_their_own_exclude_each_other(tmp_path):
    with pytest.raises(SpecError, match=r"slurm\.servers: a job whose nodes `hosts` names has one part"):
        words_of(tmp_path, sets=("on=slurm", "hosts=[n1]", "slurm.servers.nodes=1"))


def words_of(tmp_path, *given, **options):
    (tmp_path / "p.py").write_text("")
    options = LaunchOptions(program=tmp_path / "p.py", runs_dir=tmp_path / "runs", given=given, **options)
    script, run_dir = job_of(options, NOW)
    return script, run_dir, list(script.command)[4:]


def test_the_job_launches_what_was_written_with_a_directory_of_its_own(tmp_path):
    program = str(tmp_path / "p.py")
    given = ("--on", "slurm", "--workers=3", "--detach", program, "--on", "7")
    script, run_dir, words = words_of(tmp_path, *given, arguments=("--on", "7"), shortcuts={"workers": 3})
    assert run_dir == tmp_path / "runs" / "20261122-120000-p-$SLURM_JOB_ID"
    own = ["--on", "slurm", "--runs-dir", str(tmp_path / "runs"), "--run-dir", str(run_dir)]
    assert words == ["launch", *own, *given]
    assert script.spec.name == "p"
    assert script.out == tmp_path / "slurm" / "20261122-120000-p-%j.out"


def test_each_job_of_one_script_and_each_element_of_an_array_has_files_of_its_own(tmp_path):
    """The shell of a job knows its number, and sbatch puts it into the names of the output."""
    arguments = ("--seed", "$SLURM_ARRAY_TASK_ID", "--note", "costs 5$, it's ok", "")
    script, _, _ = words_of(tmp_path, "p.py", *arguments, arguments=arguments)
    line = script.text().splitlines()[-1].replace("exec ", "printf '%s\\n' ", 1)
    for number in ("17", "18"):
        variables = {"SLURM_JOB_ID": number, "SLURM_ARRAY_TASK_ID": "3"}
        words = subprocess.run(["bash", "-c", line], env=variables, capture_output=True, text=True).stdout
        assert f"\n{tmp_path}/runs/20261122-120000-p-{number}\n" in words
        assert words.endswith("--seed\n3\n--note\ncosts 5$, it's ok\n\n")


def test_a_directory_that_was_chosen_is_the_job_s(tmp_path):
    script, run_dir, _ = words_of(tmp_path, run_dir=tmp_path / "mine")
    assert run_dir == tmp_path / "mine"
    assert "$" not in script.text()


def test_a_command_follows_no_array(tmp_path, monkeypatch):
    (tmp_path / "p.py").write_text("")
    sets = ("on=slurm", "slurm.options=[--array=0-9]")
    options = LaunchOptions(program=tmp_path / "p.py", runs_dir=tmp_path / "runs", sets=sets)
    with pytest.raises(SpecError, match="submit an array with --detach"):
        slurm.launch(options)
    monkeypatch.setattr(slurm_jobs, "submit", lambda text: "17" if "--array=0-9" in text else "")
    assert slurm.launch(replace(options, detach=True)) == 0


@given(
    counts=st.tuples(*(st.integers(0, 9) for _ in range(3)), st.integers(0, 1)),
    nodes=st.integers(1, 5),
    server_nodes=st.integers(0, 3),
)
def test_a_job_s_nodes_have_the_slots_that_its_tasks_take(counts, nodes, server_nodes):
    worker, ps, chief, evaluator = counts[0], counts[1], counts[2] % 2, counts[3]
    if worker + chief == 0:
        return
    cluster = ClusterSection(chief=chief, worker=worker, ps=ps, evaluator=evaluator)
    servers = ServerNodesSection(nodes=server_nodes) if server_nodes else None
    wishes = SlurmSection(nodes=nodes, servers=servers)
    parts = JobScript(RunSpec(name="d", cluster=cluster, slurm=wishes), [], Path(), Path(), Path()).parts()
    asked = [dict(option.split("=", 1) for option in part if "=" in option) for part in parts]
    names = tuple(
        tuple(f"{part}-{node}" for node in range(int(each["--nodes"]))) for part, each in enumerate(asked)
    )
    slots = tuple(int(each["--ntasks-per-node"]) for each in asked)
    job = Allocation("17", names, slots, batch=True, restarts=0)
    placed = place(cluster, job.hosts(()), job.places(job.hosts(()), cluster, {}))
    assert len(placed) == sum(map(cluster.count, ROLES))


JOB = (
    "JobId=17 JobName=digits UserId=root(0) Priority=1 JobState={state} Reason={reason} Dependency=(null) "
    "Requeue=1 Restarts={restarts} BatchFlag=1 Reboot=0 ExitCode={code} RunTime=00:00:09 TimeLimit=02:00:00 "
    "StartTime={starts} EndTime={ends} Deadline=N/A NodeList=h[1-2] StdErr=/x=y/slurm-%j.err"
)


def job(state="RUNNING", reason="None", restarts=0, code="0:0", starts="2026-11-22T10:00:30"):
    ends = "2026-11-22T12:01:00"
    facts = {"state": state, "reason": reason, "restarts": restarts, "code": code, "starts": starts}
    return read_job(JOB.format(ends=ends, **facts))


@every_row(
    "report, over, code",
    [
        (job(), False, None),
        (job("PENDING", "Resources"), False, None),
        (job("COMPLETING", code="0:15"), False, None),
        (job("REQUEUED"), False, None),
        (job("COMPLETED"), True, 0),
        (job("FAILED", code="7:0"), True, 7),
        (job("FAILED", code="0:9"), True, 137),
        (job("CANCELLED", code="0:15"), True, 143),
        (job("CANCELLED"), True, 143),
        (job("TIMEOUT"), True, 143),
        (job("NODE_FAIL"), True, 1),
    ],
)
def test_the_end_of_a_job_is_the_end_of_its_run(report, over, code):
    assert report.over is over
    assert not over or report.exit_code == code


def test_what_is_no_report_of_a_job_is_none():
    assert read_job("slurm_load_jobs error: Invalid job id specified") is None


def test_addresses_of_nodes_are_read():
    text = "NodeName=h1 Arch=x86_64 NodeAddr=10.0.0.1 NodeHostName=h1\nNodeName=h2 NodeAddr=h2.local Port=1\n"
    assert read_node_addresses(text) == {"h1": "10.0.0.1", "h2": "h2.local"}


@pytest.mark.parametrize(
    ("known", "told"),
    [
        ({"n1": "127.0.1.1", "n2": "10.0.0.2"}, ["10.0.0.1", "10.0.0.2"]),
        ({"n1": "127.0.0.1", "n2": "127.0.0.1"}, ["127.0.0.1", "127.0.0.1"]),
    ],
)
def test_a_node_s_address_is_one_that_the_others_reach(monkeypatch, known, told):
    """Debian's hosts file gives a machine's own name a loopback address; a Slurm of one machine has no other."""
    monkeypatch.setattr(slurm_jobs, "node_addresses", lambda _: dict(known))
    monkeypatch.setattr(slurm, "own_host", {"10.0.0.2": "10.0.0.1"}.__getitem__)
    hosts = slurm._with_addresses([Host("n1"), Host("n2")], NetworkSection())
    assert [host.address for host in hosts] == told


def test_a_node_whose_address_cannot_be_resolved_is_named_with_the_remedy(monkeypatch):
    monkeypatch.setattr(slurm_jobs, "node_addresses", lambda _: {"n2": "10.0.0.2"})
    with pytest.raises(HostError, match=r"^n1: its address in Slurm .*hosts: \[{host: n1, address"):
        slurm._with_addresses([Host("n1"), Host("n2")], NetworkSection())
    assert slurm._with_addresses([Host("n1")], NetworkSection()) == [Host("n1")], "alone it needs none"


def followed():
    return JobOfRun(RunFiles(Path("/none")), "17", [Path("/none")])


def test_a_job_is_told_of_as_it_changes():
    stations = [
        (job("PENDING", "Resources"), ["job 17 is PENDING (Resources)"]),
        (job(), ["job 17 is RUNNING"]),
        (None, []),
        (job("PENDING", "BeginTime", 1), ["job 17 is PENDING (BeginTime), requeued once"]),
    ]
    progress = followed()
    for report, sentences in stations:
        view = progress.view_of(report)
        assert (list(view.news), view.exit_code) == (sentences, None)
    view = progress.view_of(job("FAILED", "NonZeroExitCode", 2, "3:0"))
    assert list(view.news) == ["job 17 is FAILED, exit code 3, requeued 2 times"]
    assert view.exit_code == 3


@every_row(
    "report, state, message",
    [
        (job("PENDING", "Resources"), "pending", "job 17 is PENDING (Resources); it may begin at 2026-11-22T10:00:30"),
        (job("PENDING", "Priority", starts="Unknown"), "pending", "job 17 is PENDING (Priority)"),
        (job(), "starting", "job 17 is RUNNING"),
        (job("CANCELLED"), "stopped", "job 17 is CANCELLED, exit code 143"),
    ],
)  # fmt: skip
def test_what_a_job_that_has_started_no_run_waits_for_is_said(report, state, message):
    view = followed().view_of(report)
    assert (view.state, view.message) == (state, message)


def test_a_job_that_fails_before_its_run_names_the_file_of_its_words():
    view = followed().view_of(job("FAILED", code="127:0"))
    assert view.state == "failed"
    assert view.failure.message.endswith("exit code 127; its words are in /x=y/slurm-%j.err")


def test_a_job_that_slurm_has_forgotten_is_over():
    progress = followed()
    progress.view_of(job())
    views = [progress.view_of(None) for _ in range(UNKNOWN_MAX)]
    assert [view.exit_code for view in views] == [*[None] * (UNKNOWN_MAX - 1), 1]
    assert views[-1].news == ["Slurm knows no job 17 any more"]
