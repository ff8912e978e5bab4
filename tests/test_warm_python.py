"""A command that is forked for a test (`warm_python`) is what one is that Python starts."""

import json
import signal

from clusters.hand import HandCluster

PROGRAM = """
import json, os, signal, sys
import threadpoolctl
import dtrain as dt

dt.get_strategy()
streams = (sys.stdin, sys.stdout, sys.stderr)
print(json.dumps({
    "name": [__name__, __file__, sys.argv, os.getcwd(), sys.path[0]],
    "environment": {name: value for name, value in os.environ.items() if not {*name.split("_")} & {"MARK", "RUN", "SPEC", "CONFIG"}},
    "signals": [(number, str(signal.getsignal(number)).split(" at 0x")[0]) for number in sorted(signal.valid_signals())],
    "mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
    "files": sorted(os.readlink(f"/proc/self/fd/{name}").split(":")[0] for name in os.listdir("/proc/self/fd")
                    if os.path.exists(f"/proc/self/fd/{name}")),
    "streams": [(each.fileno(), each.name, each.mode, each.encoding, each.errors, each.line_buffering,
                 each.write_through) for each in streams],
    "threads": [found["num_threads"] for found in threadpoolctl.threadpool_info()],
    "umask": os.umask(0o22),
    "session": os.getsid(0),
    "group": os.getpgid(0),
    "limits": open("/proc/self/limits").read(),
    "executed": [sys.executable, os.path.exists(f"/proc/{os.getpid()}")],
}), flush=True)
"""


def test_a_forked_task_sees_what_one_sees_that_python_has_started(launcher, tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    seen = []
    for forked in (True, False):
        cluster = HandCluster(launcher, forked=forked, chief=1)
        spec = cluster.spec(training={"strategy": "mirrored"})
        command = cluster.start("chief:0", "--spec", spec, "program.py", "a word", environment={"A": "word"})
        cluster.succeed()
        seen.append(json.loads(command.out))
    forked, executed = seen
    for what in executed:
        assert forked[what] == executed[what], what


def test_its_end_is_told_as_that_of_a_child(launcher):
    wrong = launcher.dtrain("stop", "no-such-run")
    waiting = launcher.dtrain(
        "ps", "--ps_hosts", "127.0.0.1:1", "--worker_hosts", "127.0.0.1:2", "--insecure"
    )
    assert waiting.process.poll() is None
    waiting.send(signal.SIGKILL)
    assert (wrong.end(), waiting.end()) == (3, -signal.SIGKILL)
    assert wrong.err.startswith("dtrain: ")
    assert waiting.process.poll() == -signal.SIGKILL
