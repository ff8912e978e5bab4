"""Tasks, disks, clocks and machines that behave badly: clear words, the right exit code, nothing lost,
nothing left.
"""

import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from launching import wait_until

PACED = str(Path(__file__).parents[2] / "clusters" / "paced_line.py")
ALONE = ("--strategy", "single")
SMALL = ("--ps", "1", "--no-evaluator", "--workers", "1")
FLOOD_MB = 1000 if os.environ.get("DTRAIN_CHAOS") else 30


@pytest.fixture
def in_namespace():
    """Makes a wrapper that runs shell lines, and then the command, in a mount namespace of its own."""
    if subprocess.run(["unshare", "-rm", "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine allows no mount namespace to a user (unshare -rm)")
    return lambda script: ("unshare", "-rm", "sh", "-c", script, "sh")


# Tasks


def test_a_flood_of_output_is_complete_in_the_file_and_counted_on_the_console(launcher):
    line = "a line of which there are very many, and which no reader will read to its end"
    lines = FLOOD_MB * 10**6 // (len(line) + 1)
    shown = launcher.folder / "shown"
    with shown.open("w") as stdout:
        launch = launcher.start(*ALONE, "--", "sh", "-c", f"yes '{line}' | head -n {lines}", stdout=stdout)
        assert launch.end() == 0
    log = launch.run_dir / "tasks/chief-0/attempt-0/output.log"
    assert log.stat().st_size == lines * (len(line) + 1)
    text = shown.read_text()
    left_out = [int(count) for count in re.findall(r"\[(\d+) lines not shown", text)]
    assert sum(left_out) + text.count("\n") - len(left_out) == lines
    launch.wait_gone()


def test_half_a_line_waits_for_its_other_half(launcher):
    program = launcher.program(
        """
        status()
        sys.stdout.write("loss 0.12")
        sys.stdout.flush()
        (run_dir / "half").touch()
        wait_for(run_dir / "go")
        print("34", flush=True)
        """
    )
    launch = launcher.start(*SMALL, program)
    wait_until(lambda: (launch.run_dir / "half").exists())
    wait_until(lambda: launch.log("worker:0") == launch.log("chief:0") == "loss 0.12")
    logs = launcher.dtrain("logs", str(launch.run_dir), "chief:0")
    assert logs.end() == 0
    assert "loss 0.12" in logs.out
    (launch.run_dir / "go").touch()
    assert launch.end() == 0
    assert sorted(launch.out.splitlines()) == ["chief:0 | loss 0.1234", "worker:0 | loss 0.1234"]


@pytest.mark.parametrize("foreign", [False, True])
def test_a_task_that_forks_into_a_session_of_its_own_and_exits(launcher, foreign):
    program = launcher.program(
        """
        status()
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                (run_dir / f"daemon-{task}").touch()
                time.sleep(1001)
            os._exit(0)
        wait_for(run_dir / f"daemon-{task}")
        """
    )
    script = (
        "setsid sh -c 'touch \"$DTRAIN_RUN_DIR/daemon\"; sleep 1001' & until test -e "
        '"$DTRAIN_RUN_DIR/daemon"; do :; done'
    )
    launch = launcher.start(*ALONE, *(("--", "sh", "-c", script) if foreign else (program,)))
    assert launch.end() == 0, launch.err
    assert not launch.pids()


def test_fifty_tasks_where_40_files_are_suggested(launcher):
    program = launcher.program("status()\nforever()\n")
    few = ("sh", "-c", 'ulimit -Sn 40; exec "$@"', "sh")
    launch = launcher.start(
        "--workers", "50", "--ps", "1", "--no-evaluator", "--start-timeout", "300", program, wrapper=few
    )
    launch.wait_running()
    limits = Path(f"/proc/{launch.task('ps:0')['pid']}/limits").read_text()
    [(soft, hard)] = re.findall(r"Max open files +(\d+) +(\d+)", limits)
    assert soft == hard, "a server needs a file for every connection"
    launch.send(signal.SIGTERM)
    assert launch.end() == 143
    assert not launch.pids()


def test_the_guardians_of_commands_find_open_files_besides_the_ports(launcher):
    few = ("sh", "-c", 'ulimit -Sn 32; exec "$@"', "sh")
    words = ("--set", "cluster.chief=1", "--workers", "15", "--ps", "0", "--", "sh", "-c", "sleep 1000")
    launch = launcher.start(*words, wrapper=few)
    launch.wait_running()
    launch.send(signal.SIGTERM)
    assert launch.end() == 143, launch.err
    assert not launch.pids()


# What a launch is asked for


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("--name", "two\nlines"),
            (
                "--name 'two\\nlines': expected letters, digits, '.', '_' and '-', at most 100 of them, found "
                "'two\\nlines'"
            ),
        ),
        (("--name", "../../etc"), "--name ../../etc: expected letters, digits"),
        (("--name", ".."), "--name ..: expected a letter or digit first"),
        (("large.yaml",), "large.yaml: expected a spec of at most 256 KiB, found a larger file"),
        (("bomb.yaml",), "bomb.yaml:2:8: not YAML that a spec can use: aliases (*name) are refused"),
    ],
)
def test_a_spec_that_is_none(launcher, words, said):
    program = launcher.program("print('started')")
    (launcher.folder / "large.yaml").write_bytes(b"cluster: {worker: 1}\n" + b"#" * 10_000_000)
    (launcher.folder / "bomb.yaml").write_text("a: &a [x, x, x, x]\nb: &b [*a, *a, *a]\n")
    launch = launcher.start(*words, program)
    assert launch.end() == 2
    assert launch.err.startswith(said), launch.err
    assert "Traceback" not in launch.err
    assert launch.out == ""
    assert not launch.run_dir.exists()
    launch.wait_gone()


# The machine


def test_a_disk_that_fills_up_under_the_run(launcher, in_namespace):
    """And stays full: another program takes at once what the run gives back."""
    program = launcher.program(
        """
        status(step=3)
        if task == "worker:0":
            wait_for(run_dir / "filler")
        while True:
            try:
                with open(run_dir / "filler", "ab", buffering=0) as file:
                    while file.write(b"x" * 4096):
                        pass
            except OSError:
                if task == "chief:0":
                    print("this line has no reader")
        """
    )
    script = 'mount -t tmpfs -o size=2m none disk && { "$@"; code=$?; cp -r disk/run kept; exit $code; }'
    (launcher.folder / "disk").mkdir()
    launch = launcher.start("--run-dir", "disk/run", *SMALL, program, wrapper=in_namespace(script))
    assert launch.end() == 1
    assert "OSError: [Errno 28] No space left on device" in launch.err[launch.err.index("╭") :], (
        "the box has the reason"
    )
    launch.run_dir = launcher.folder / "kept"
    record = launch.record()
    assert (record["state"], record["exit_code"]) == ("failed", 1), "the last word has found room"
    assert "No space left" in record["failure"]["message"]
    assert not list(launch.run_dir.rglob(".*.json.*")), "no halves of files"
    launch.wait_gone()


def test_a_disk_that_was_full_before(launcher, in_namespace):
    (launcher.folder / "disk").mkdir()
    script = 'mount -t tmpfs -o size=4k none disk && exec "$@"'
    launch = launcher.start(
        "--run-dir", "disk/run", *SMALL, launcher.program("status()\n"), wrapper=in_namespace(script)
    )
    assert launch.end() == 1
    assert re.fullmatch(r"dtrain: \S+: No space left on device\n", launch.err), launch.err
    launch.wait_gone()


def test_a_working_directory_that_is_read_only(launcher, in_namespace):
    launcher.program("status()\nprint(os.access('.', os.W_OK), Path.cwd().name)\n", name="here.py")
    script = 'mount --bind . . && mount -o remount,bind,ro . && cd "$PWD" && exec "$@"'
    elsewhere = launcher.folder.with_name("runs-elsewhere")
    launch = launcher.start(
        "--run-dir", str(elsewhere), *ALONE, "here.py", run_dir=elsewhere, wrapper=in_namespace(script),
        environment={"DTRAIN_RUNS_DIR": str(elsewhere.with_name("index"))},
    )  # fmt: skip
    assert launch.end() == 0, launch.err
    assert launch.out == f"chief:0 | False {launcher.folder.name}\n"
    assert launch.record()["state"] == "succeeded"
    shutil.rmtree(elsewhere)


def test_a_run_directory_that_cannot_be_made(launcher, in_namespace):
    script = 'mount --bind . . && mount -o remount,bind,ro . && cd "$PWD" && exec "$@"'
    launch = launcher.start(
        "--run-dir", "mine", *ALONE, launcher.program("status()\n"), wrapper=in_namespace(script)
    )
    assert launch.end() == 1
    assert re.fullmatch(
        r"dtrain: cannot make the run directory \S+/mine: Read-only file system\n", launch.err
    ), launch.err


@pytest.fixture
def jumping_clock(tmp_path):
    """The environment in which the time of day jumps by a day, back and forth."""
    library = tmp_path / "jumping_clock.so"
    command = [
        "cc",
        "-shared",
        "-fPIC",
        "-o",
        str(library),
        str(Path(__file__).with_name("jumping_clock.c")),
        "-ldl",
    ]
    if shutil.which("cc") is None or subprocess.run(command, check=False).returncode:
        pytest.skip("there is no C compiler to make a clock that jumps with")
    return {"LD_PRELOAD": str(library)}


def test_a_clock_that_jumps_decides_nothing(launcher, jumping_clock):
    words = (
        "--workers",
        "1",
        "--ps",
        "1",
        "--timeout",
        "300",
        "--set",
        "restart.worker.backoff_s=0.1",
        "--run-dir",
        "mine",
    )
    mine = launcher.folder / "mine"
    program = ("--no-evaluator", PACED, "--wait_for", "go", "--after", "20")
    launch = launcher.start(*words, *program, "--steps", "60", environment=jumping_clock, run_dir=mine)
    launch.wait_running()
    os.kill(launch.pid("worker:0"), signal.SIGKILL)
    launch.wait_for(
        lambda: launch.task("worker:0")["restarts"] == 1 and launch.task("worker:0")["state"] == "running",
        "restart",
    )
    alive = launcher.dtrain("status", str(mine), environment=jumping_clock)
    assert (alive.end(), "running" in alive.out.splitlines()[0]) == (0, True), alive.out
    (launcher.folder / "go").touch()
    assert launch.end() == 0, launch.err
    assert float(re.search(r"succeeded after ([\d.]+) s", launch.err)[1]) < 300
    times = [event["monotonic_s"] for kind in ("started", "exited") for event in launch.events(kind)]
    assert max(times) - min(times) < 300

    (launcher.folder / "go").unlink()
    again = launcher.start(
        *words, "--resume", *program, "--steps", "200", environment=jumping_clock, run_dir=mine
    )
    again.wait_running()
    stop = launcher.dtrain("stop", str(mine), environment=jumping_clock)
    assert stop.end() == 0, stop.err
    assert again.end() == 143
    again.wait_gone()
