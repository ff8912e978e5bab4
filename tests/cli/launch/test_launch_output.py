"""What a launch prints, and that no reader can slow it down."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from launching import SOURCES, wait_until

SMALL = ("--ps", "1", "--no-evaluator", "--workers", "1")
ALONE = ("--strategy", "single")


def test_lines_are_whole_and_readable_whatever_the_bytes(launcher):
    program = launcher.program(
        r"""
        status()
        print(json.dumps(list(range(100_000))), flush=True)
        sys.stdout.buffer.write(b"caf\xc3")
        sys.stdout.flush()
        sys.stdout.buffer.write(b"\xa9\nbad \xff byte\n10%\r20%\r30%\n\x1b[2J\x1b[31mred\x1b[0m\nhalf a line")
        sys.stdout.flush()
        os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    launch = launcher.start(*ALONE, "--set", "restart.chief.policy=never", program)
    assert launch.end() == 137
    first, *others = launch.out.splitlines()
    assert json.loads(first.removeprefix("chief:0 | ")) == list(range(100_000))
    assert others == [
        "chief:0 | café", "chief:0 | bad \ufffd byte", "chief:0 | 30%", "chief:0 | red", ("chief:0 | half a "
                                                                                         "line"),
    ]  # fmt: skip


def test_a_reader_that_has_gone_is_silence(launcher):
    program = launcher.program(
        """
        status()
        print("first", flush=True)
        wait_for(run_dir / "go")
        for line in range(20_000):
            print(line)
        """
    )
    reader = subprocess.Popen(["head", "-n", "1"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    launch = launcher.start(*ALONE, program, stdout=reader.stdin)
    reader.stdin.close()
    assert reader.stdout.read() == "chief:0 | first\n"
    (launch.run_dir / "go").touch()
    assert reader.wait() == 0
    reader.stdout.close()
    assert launch.end() == 0
    assert "Broken" not in launch.err
    assert launch.log("chief:0").endswith("\n19999\n")


def test_a_reader_that_does_not_read_slows_nobody(launcher):
    program = launcher.program(
        """
        status()
        for line in range(20_000):
            print("x" * 1000)
        (run_dir / "written").touch()
        """
    )
    reading_end, writing_end = os.pipe()
    launch = launcher.start(*ALONE, program, stdout=writing_end)
    os.close(writing_end)
    wait_until(lambda: (launch.run_dir / "written").exists())
    assert launch.end() == 0
    os.close(reading_end)
    assert launch.log("chief:0").count("\n") == 20_000


def test_closed_standard_files_of_the_launcher(launcher):
    program = launcher.program("status()\nprint('a line')\n")
    closed = launcher.folder / "closed"
    words = [sys.executable, "-m", "dtrain_cli.main", "launch", "--run-dir", str(closed), *ALONE, program]
    command = f"{shlex.join(words)} <&- >&- 2>&-"
    environment = {**os.environ, "PYTHONPATH": SOURCES, "DTRAIN_RUNS_DIR": str(launcher.folder)}
    assert (
        subprocess.run(["sh", "-c", command], cwd=launcher.folder, env=environment, timeout=30).returncode
        == 0
    )
    assert (closed / "tasks/chief-0/attempt-0/output.log").read_text() == "a line\n"


def test_a_full_disk_behind_stdout_is_said(launcher):
    with open("/dev/full", "w") as full:
        launch = launcher.start(*ALONE, launcher.program("status()\nprint('lost')\n"), stdout=full)
        assert launch.end() == 0
    assert (
        "stdout: No space left on device; the output that is missing there is in the log files" in launch.err
    )
    assert launch.log("chief:0") == "lost\n"


def test_lines_that_are_left_out_are_counted(launcher):
    program = launcher.program(
        """
        status()
        for line in range(20_000):
            print("x" * 1000)
        (run_dir / "written").touch()
        wait_for(run_dir / "go")
        """
    )
    reading_end, writing_end = os.pipe()
    launch = launcher.start(*ALONE, program, stdout=writing_end)
    os.close(writing_end)
    wait_until(lambda: (launch.run_dir / "written").exists())
    (launch.run_dir / "go").touch()
    with open(reading_end) as reader:  # it begins when 20 MB are waiting, and then keeps up
        shown = reader.read().splitlines()
    assert launch.end() == 0
    dropped = sum(int(line.split("[")[1].split()[0]) for line in shown if "lines not shown" in line)
    assert dropped > 0
    assert dropped + sum("lines not shown" not in line for line in shown) == 20_000


def test_a_closed_stdout_of_a_task(launcher):
    program = launcher.program("status()\nos.close(1)\nos.close(2)\n")
    launch = launcher.start(*ALONE, program)
    assert launch.end() in (0, 120)


def test_the_box_shows_the_earliest_cause_not_a_lost_peer(launcher):
    program = launcher.program(
        """
        import atexit
        from dtrain.errors import PeerLostError

        status()
        if task == "worker:0":
            atexit.register(forever)
            raise RuntimeError("the true reason")
        wait_for(run_dir / "tasks/worker-0/attempt-0/failure.json")
        raise PeerLostError("worker:0 went away")
        """
    )
    launch = launcher.start(*SMALL, program)
    assert launch.end() == 1
    box = launch.err[launch.err.index("╭") :]
    assert "worker:0 failed at" in box
    assert "RuntimeError: the true reason" in box
    assert 'File "program.py", line' in box
    assert "dtrain/task/" not in launch.out + launch.err, "dtrain's own frames are not shown"


def test_a_lost_peer_is_explained_by_the_crash_of_who_is_being_restarted(launcher):
    program = launcher.program(
        """
        from dtrain.errors import PeerRefusedError

        status()
        if task == "worker:0":
            os.kill(os.getpid(), signal.SIGKILL)
        wait_for(run_dir / "tasks/worker-0/attempt-0/failure.json")
        raise PeerRefusedError("worker:0 has forgotten everything")
        """
    )
    launch = launcher.start(*SMALL, program)
    assert launch.end() == 1, "the code of the task that failed for good"
    box = launch.err[launch.err.index("╭") :]
    assert "worker:0 failed at" in box
    assert "killed by SIGKILL" in box


def test_users_mistake_is_a_message_with_its_place(launcher):
    program = launcher.program(
        """
        from dtrain.errors import InputError

        status()
        raise InputError("labels: expected 0 to 9, found 11")
        """
    )
    launch = launcher.start(*ALONE, program)
    assert launch.end() == 1
    lines = launch.out.splitlines()
    assert lines[0] == "chief:0 | InputError: labels: expected 0 to 9, found 11"
    assert 'File "program.py"' in lines[1]
    assert "Traceback" not in launch.out
    assert "Traceback" in launch.record()["failure"]["traceback"]


def test_a_stall_writes_the_stacks_of_every_task(launcher):
    program = launcher.program(
        """
        def the_place_where_it_hangs():
            forever()

        status(step=412, waiting_for="ps:0")
        the_place_where_it_hangs()
        """
    )
    launch = launcher.start(*SMALL, "--stall-timeout", "0.5", program)
    for task in ("chief:0", "worker:0"):
        wait_until(lambda task=task: "the_place_where_it_hangs" in launch.log(task))
    wait_until(lambda: launch.record()["stalled"] is not None)
    shown = launcher.dtrain("status", launch.run_dir)
    assert shown.end() == 0
    # The server says after two seconds that it waits for the chief in its turn.
    waits = r"stalled at step 412, waiting for (chief:0, )?ps:0"
    assert re.search(waits, " ".join(shown.out.split()))
    launch.send(signal.SIGTERM)
    assert launch.end() == 143
    assert re.search(waits, launch.err)
    assert "the_place_where_it_hangs" not in launch.out, (
        "the word is not buried under the stacks of all tasks"
    )
    assert launch.record()["stalled"] is None


def test_json_is_the_last_line_of_stdout(launcher):
    import json

    program = launcher.program("status(step=7, max_steps=7)\nprint('a line')\n")
    launch = launcher.start(*ALONE, "--json", program)
    assert launch.end() == 0, launch.err
    *lines, last = launch.out.splitlines()
    assert lines == ["chief:0 | a line"]
    report = json.loads(last)
    assert (report["state"], report["exit_code"], report["tasks"][0]["task"]) == ("succeeded", 0, "chief:0")


@pytest.mark.parametrize(
    ("of_the_user", "printed"), [({}, "1 thread a task"), ({"OMP_NUM_THREADS": "3"}, "as you set it")]
)
def test_the_thread_limits_of_a_foreign_command_are_printed_and_the_users_stay(
    launcher, of_the_user, printed
):
    cores = len(os.sched_getaffinity(0))
    words = [
        "--ps",
        "0",
        "--workers",
        str(2 * cores),
        "--",
        "sh",
        "-c",
        "echo limits $OMP_NUM_THREADS $TF_NUM_INTRAOP_THREADS",
    ]
    launch = launcher.start(*words, environment=of_the_user)
    assert launch.end() == 0, launch.err
    threads = of_the_user.get("OMP_NUM_THREADS", "1")
    assert launch.log("chief:0") == f"limits {threads} {threads}\n"
    assert printed in launch.err


@pytest.mark.skipif(
    not any(shutil.which("py-spy", path=path) for path in (None, str(Path(sys.executable).parent))),
    reason="py-spy is not installed",
)
def test_the_stacks_of_a_command_that_hangs_say_where_it_stands(launcher):
    hangs = launcher.folder / "hangs.py"
    hangs.write_text(
        "import time\n\ndef waits_for_godot():\n    print('up', flush=True)\n    time.sleep(600)\n\nwaits_for_godot()\n"
    )
    command = ("sh", "-c", f"{sys.executable} {hangs}; true")
    launch = launcher.start("--workers", "1", "--ps", "0", "--no-evaluator", "--", *command)
    launch.wait_for(lambda: "up" in launch.log("worker:0"), "worker:0 has printed nothing")
    shown = launcher.dtrain("logs", str(launch.run_dir), "worker:0", "--stacks")
    assert shown.end() == 0, shown.err
    assert re.search(r"waits_for_godot \(.*hangs.py:5\)", shown.out)
    assert "chief:0" not in shown.out
    assert re.search(r"process \d+: py-spy cannot read it", shown.out), "the shell above it"
    assert launcher.dtrain("stop", str(launch.run_dir)).end() == 0
    ended = launcher.dtrain("logs", str(launch.run_dir), "worker:0", "--stacks")
    assert ended.end() == 0
    assert ended.out == "worker:0 | has no process\n"
