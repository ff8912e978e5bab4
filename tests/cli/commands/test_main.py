"""The command as a process: help that is quick, mistakes that are one message, exit codes, closed pipes."""

import json
import os
import subprocess
import sys

import pytest
from cli.commands.running import DTRAIN, dtrain
from row_by_row import every_row


def test_help_loads_nothing_heavy():
    code = (
        "import sys\nfrom dtrain_cli import main\nsys.argv = ['dtrain', '--help']\n"
        "try:\n    main.main()\nexcept SystemExit as error:\n    assert not error.code\n"
        "heavy = {'numpy', 'grpc', 'ruamel', 'rich', 'psutil', 'msgspec', 'portpicker'}\n"
        "loaded = heavy & {name.split('.')[0] for name in sys.modules}\n"
        "assert not loaded, loaded\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


COMMANDS = [
    "launch",
    "plan",
    "chief",
    "worker",
    "ps",
    "evaluator",
    "status",
    "logs",
    "stop",
    "runs",
    "rm",
    "evaluate",
    "predict",
    "export",
    "data",
    "chaos",
    "check",
    "env",
    "completion",
    "help",
]


def test_help_is_a_command_too():
    assert dtrain("help").stdout == dtrain("--help").stdout
    assert dtrain("help", "launch").stdout == dtrain("launch", "--help").stdout
    done = dtrain("help", "lunch")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "dtrain help: lunch: no such command and no public name; do you mean launch?\n"


def test_help_knows_the_names_of_the_library():
    done = dtrain("help", "LSTM", environment={"COLUMNS": "80"})
    assert done.returncode == 0
    assert done.stdout.startswith("dt.layers.LSTM(units, activation='tanh', ")
    assert "\n    return_sequences: " in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_help_groups_the_commands():
    shown = dtrain("--help").stdout
    titles = [
        "Start and check:",
        "Look at runs and act on them:",
        "Use a trained model, look at data:",
        "Set up:",
    ]
    places = [shown.index(f"\n{title}\n") for title in titles]
    assert places == sorted(places)
    assert (
        places[0]
        < shown.index("\n  launch ")
        < shown.index("\n  check ")
        < places[1]
        < shown.index("\n  rm ")
    )


@pytest.mark.parametrize(
    "module", ["click", "dtrain.errors", "dtrain_cli.commands.launch", "dtrain_cli.launch.launcher"]
)
def test_ctrl_c_while_modules_are_being_read_is_no_traceback(program, module):
    code = (
        "import sys\n"
        "class Interrupted:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {module!r}:\n"
        "            raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupted())\n"
        "from dtrain_cli.main import main\n"
        "main()\n"
    )
    words = [sys.executable, "-c", code, "launch", "--runs-dir", program.parent / "runs", program]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.strip()) == (130, "")
    assert not (program.parent / "runs").exists()


def test_every_command_has_help_with_an_example():
    overview = dtrain("--help").stdout
    for command in COMMANDS:
        assert f"\n  {command} " in overview


@every_row("command", COMMANDS)
def test_help_shows_an_example(command):
    from click.testing import CliRunner

    from dtrain_cli.main import cli

    shown = CliRunner().invoke(cli, [command, "--help"]).output
    assert "Example" in shown
    assert f"dtrain {command}" in shown or "dtrain check -" in shown


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["launch"], "expected a program, such as"),
        (["launch", "--wrong", "PROGRAM"], "dtrain launch: No such option '--wrong'."),
        (["nonsense"], "dtrain: No such command 'nonsense'. See `dtrain --help`."),
        (
            ["chaos"],
            "dtrain chaos: expected RUN ACTION TASK, or --campaign FILE alone. See `dtrain chaos --help`.",
        ),
        (
            ["status", "a", "b"],
            "dtrain status: Got unexpected extra argument (b). See `dtrain status --help`.",
        ),
        (["launch", "--workers"], "dtrain: Option '--workers' requires an argument. See `dtrain --help`."),
        (["launch", "--"], "expected a command after --"),
        (["launch", "--", "no-such-thing"], "no-such-thing: no such executable"),
        (["launch", "no.py"], "no.py: cannot read the program: No such file or directory"),
        (["launch", "no.yaml", "PROGRAM"], "no.yaml: cannot read the spec: No such file or directory"),
        (
            ["plan", "--workers", "1", "--updates", "async", "--backup-workers", "1", "PROGRAM"],
            "--backup-workers 1: has no meaning with `updates: async`",
        ),
        (
            ["plan", "--set", "cluster.wrker=2", "PROGRAM"],
            "--set cluster.wrker=2: unknown key; did you mean worker?",
        ),
        (["plan", "--name", "../x", "PROGRAM"], "--name ../x: expected letters, digits"),
        (["worker", "PROGRAM"], "nothing says which worker this is, and of which cluster"),
        (["worker"], "expected a program, such as `dtrain worker"),
        (["ps", "--", "x"], "`dtrain ps` runs a Python program"),
        (["check", "-"], "TF_CONFIG is not set"),
        (
            ["launch", "PROGRAM", "--workers", "3"],
            "--workers is an option of dtrain, which stands before the program: `dtrain launch",
        ),
        (
            ["launch", "PROGRAM", "--steps", "3", "--name=x"],
            "--name is an option of dtrain, which stands before the program",
        ),
        (
            ["plan", "PROGRAM", "--no-evaluator"],
            "--no-evaluator is an option of dtrain, which stands before the program",
        ),
        (
            ["worker", "PROGRAM", "--index", "1"],
            "--index is an option of dtrain, which stands before the program: `dtrain worker",
        ),
        (
            ["launch", "PROGRAM", "right.yaml"],
            "right.yaml is a cluster spec, which stands before the program",
        ),
        (
            ["launch", "broken.py"],
            "broken.py:2:5: the program does not compile: SyntaxError: '(' was never closed",
        ),
        (["launch", "nothing.py"], "nothing.py: the program does not compile: "),
        (
            ["launch", "--ps", "0", "PROGRAM"],
            "--ps 0: training on parameter servers needs at least one ps task",
        ),
        (["launch", "--", "./script.sh"], "./script.sh: is not executable; run `chmod +x ./script.sh`"),
        (["launch", "notes.md"], "notes.md: expected a Python program PROGRAM.py, found another file"),
        (
            ["check", "scheme.yaml"],
            "scheme.yaml:1:19: cluster.chief.0: expected host:port without spaces, slashes, a user's name or a scheme",
        ),
    ],
)
@pytest.mark.usefixtures("beside_it")
def test_a_wrong_command_line_is_one_line_and_exit_code_2(program, arguments, said):
    done = dtrain(
        *(program if argument == "PROGRAM" else argument for argument in arguments), cwd=program.parent
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith(said)


@pytest.mark.parametrize(
    ("source", "arguments", "passed_on"),
    [
        ("", ["--", "--workers", "3", "right.yaml"], ["--workers", "3", "right.yaml"]),
        ("", ["--steps", "3", "--", "--name", "x"], ["--steps", "3", "--", "--name", "x"]),
        ("add_argument('--name')", ["--name", "x"], ["--name", "x"]),
        ("option('--json/--no-json')", ["--json"], ["--json"]),
        ("", ["--data", "notes.yaml", "absent.yaml", "--workers-of-mine", "-n"], None),
    ],
)
def test_what_can_be_the_programs_own_is_passed_on(program, source, arguments, passed_on):
    program.write_text(source)
    (program.parent / "notes.yaml").write_text("layers: 3\n")
    done = dtrain("plan", "--json", "train.py", *arguments, cwd=program.parent)
    assert json.loads(done.stdout)["tasks"][0]["arguments"] == (passed_on or arguments)


def test_clicks_own_refusals_end_with_2_as_well(program):
    for arguments in (
        ["nonsense"],
        ["launch", "--nonsense", program],
        ["launch", "--workers", "many", program],
    ):
        done = dtrain(*arguments)
        assert done.returncode == 2
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(shell):
    assert "_DTRAIN_COMPLETE" in dtrain("completion", shell).stdout


def test_commands_and_options_are_completed():
    answer = dtrain(
        environment={"_DTRAIN_COMPLETE": "bash_complete", "COMP_WORDS": "dtrain sta", "COMP_CWORD": "1"}
    )
    assert answer.stdout == "plain,status\n"


def test_a_role_command_becomes_its_task(tmp_path):
    program = tmp_path / "train.py"
    program.write_text(
        "import json, os, sys\n"
        "from dtrain.process.private_variables import own_environment\n"
        "names = ('TF_CONFIG', 'DTRAIN_RUN_ID', 'DTRAIN_RUN_DIR', 'DTRAIN_SECRET')\n"
        "values = [os.environ.get(name) for name in names]\n"
        "print(json.dumps([os.getpid(), sys.argv[1:], *values, own_environment()['DTRAIN_SECRET']]))\n"
        "sys.exit(7)\n"
    )
    (tmp_path / "secret").write_text("the secret of a run")
    (tmp_path / "secret").chmod(0o600)
    flags = ["--ps_hosts", "a:1", "--worker-hosts=b:1,b:2", "--steps", "3"]
    command = [
        *DTRAIN,
        "worker",
        "--index",
        "1",
        "--secret-file",
        "secret",
        "--run-dir",
        "run",
        "train.py",
        *flags,
    ]
    environment = {**os.environ, "DTRAIN_RUN_ID": "of another run", "DTRAIN_SECRET": "of another run"}
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        pid, arguments, config, run_id, run_dir, public, secret = json.loads(process.stdout.readline())
    assert process.returncode == 7
    assert pid == process.pid
    assert arguments == flags
    assert json.loads(config) == {
        "cluster": {"worker": ["b:1", "b:2"], "ps": ["a:1"]},
        "task": {"type": "worker", "index": 1},
    }
    assert (run_id, public, secret) == (None, None, "the secret of a run")
    assert run_dir == str(tmp_path / "run")
