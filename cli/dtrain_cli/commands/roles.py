"""`dtrain chief|worker|ps|evaluator|task`: one task, here. The command becomes the task: same pid, its
signals, its exit code.

A worker that joins a run is owned by its command instead, as all others of that run are by its launcher.
"""

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from dtrain.cluster import Role
from dtrain.errors import SpecError
from dtrain_cli.commands.command_line import (
    DIRECTORY,
    RUNS_DIR_HELP,
    SECURITY_OPTIONS,
    Count,
    ProgramCommand,
    ProgramWords,
    Seconds,
    check_program_file,
    complete_run,
)
from dtrain_cli.commands.runs import find

if TYPE_CHECKING:
    from dtrain.process.assignment import TaskAssignment

FILE = click.Path(path_type=Path)
_CLASSIC = {
    "ps_hosts": "Addresses of all servers, with commas between.",
    "worker_hosts": "Addresses of all workers.",
    "job_name": "The role again.",
    "task_index": "The index again.",
}
_SECURITY = tuple(option.removeprefix("--").replace("-", "_") for option in SECURITY_OPTIONS)
"""The options of `security`, which a worker that joins a run may have for itself."""
_FOR_RUN = ("tls_ca", "tls_cert", "tls_key")
_FOR_ADDRESS = ("run_dir", *_FOR_RUN, "secret_file", "insecure")
"""The options that may stand beside `--join RUN` and `--join HOST:PORT`."""
_SHORTCUTS = (
    "start_timeout",
    "grace",
    *_SECURITY,
)
"""The shortcuts of `dtrain_cli.spec.SHORTCUTS` that a single task takes."""
_OF_ANOTHER_RUN = ("DTRAIN_RUN_ID", "DTRAIN_RUN_DIR", "DTRAIN_SECRET", "DTRAIN_PRIVATE_FD")
_ABOUT = {
    Role.CHIEF: "Start the chief here: it leads the training.",
    Role.WORKER: "Start one worker here: it trains.",
    Role.PS: "Start one parameter server here.",
    Role.EVALUATOR: "Start the evaluator here.",
}
_DETAIL = """

Its place in the cluster comes from --spec and --index, or the classic flags, or TF_CONFIG in the environment.
"""


_ABOUT_TASK = """Start the task that a cluster manager has given this machine.

Its role and the addresses of the others come from the variables that the manager sets: TF_CONFIG, or those of
Vertex AI, SageMaker, Slurm (srun), Open MPI, PMI, Flux, LSF, PBS, SkyPilot, AWS Batch or an Indexed Job of
Kubernetes. Where they name no hosts, --set hosts=h1:2,h2:2 does. After -- any executable gets its place by
TF_CONFIG, RANK, MASTER_ADDR and the like.
"""


def _role_command(role: Role) -> click.Command:
    def run(words: ProgramWords, spec: Path | None, sets: tuple[str, ...], **options: Any) -> int:
        return _start(role, command, words, spec, sets, options)

    program = "" if role is Role.PS else " train.py --epochs 3"
    epilog = f"\b\nExamples:\n  dtrain {role} --spec cluster_specs/two_hosts.yaml --index 0{program}\n"
    epilog += f"  dtrain {role} --ps_hosts a:2222 --worker_hosts b:2222,c:2222 --task_index 0{program}\n"
    help_text = _ABOUT[role] + _DETAIL
    if role is Role.WORKER:
        epilog += f"  dtrain {role} --join digits{program}\n"
        epilog += f"  dtrain {role} --join a:2222 --secret-file secret.txt{program}\n"
        help_text += (
            "\nWith --join it is one more worker of a run that is training, until that ends or it is "
            "stopped: RUN names a run on this machine, HOST:PORT is the address of any server of a run.\n"
        )
    classic = [flag for name in _CLASSIC for flag in _spellings(name)]
    command = ProgramCommand(
        role.value,
        callback=run,
        help=help_text,
        epilog=epilog,
        params=_options(role),
        takes_spec=False,
        shared=classic,
    )
    return command


def _task_command() -> click.Command:
    def run(words: ProgramWords, spec: Path | None, sets: tuple[str, ...], **options: Any) -> int:
        work, code = options.pop("work"), options.pop("code")
        if not (words.foreign or work):
            words = _check_words("task", command, words)
        shortcuts = {name: value for name in _SHORTCUTS if (value := options.pop(name)) is not None}
        assignment = _assignment(
            None, spec=spec, sets=sets, shortcuts=shortcuts, foreign=words.foreign, **options
        )
        if work is not None:
            _work_in(work, code)
            words = words if words.foreign else _check_words("task", command, words)  # its program is there
        if words.foreign:
            words.check_program()
            _become_command(assignment, words)
        _become_task(assignment, words)

    command = ProgramCommand(
        "task",
        callback=run,
        short_help="Start the task that a cluster manager has given this machine.",
        help=_ABOUT_TASK,
        epilog="\b\nExamples:\n  srun --ntasks=4 dtrain task --secret-file secret.txt train.py\n"
        "  srun --ntasks=4 dtrain task -- python train_with_tensorflow.py\n"
        "  dtrain task --spec spec.yaml train.py --epochs 3\n",
        params=[
            *_options_of_place("A spec; where it writes counts, the engine's hosts take its tasks."),
            click.Option(
                ["--work"], type=DIRECTORY, metavar="DIR", help="Work in this folder, which is made."
            ),
            click.Option(
                ["--code"],
                type=click.Path(path_type=Path),
                metavar="DIR|TAR.GZ",
                help="Link the files of this folder, or archive, there.",
            ),
        ],
        takes_spec=False,
    )
    return command


def _options(role: Role) -> list[click.Parameter]:
    options = [
        *_options_of_place("A cluster spec that writes addresses."),
        click.Option(["--index"], type=Count(0), metavar="I", help="Which task of this role."),
        *(
            click.Option([*_spellings(name), name], metavar="...", help=f"Classic flag. {about}")
            for name, about in _CLASSIC.items()
        ),
    ]
    if role is Role.WORKER:
        options += [
            click.Option(
                ["--join"],
                metavar="RUN|HOST:PORT",
                shell_complete=complete_run,
                help="Join a run that is training.",
            ),
            click.Option(["--runs-dir"], type=DIRECTORY, metavar="DIR", help=RUNS_DIR_HELP),
        ]
    return options


def _options_of_place(about_spec: str) -> list[click.Parameter]:
    return [
        click.Option(["--spec"], type=FILE, metavar="SPEC", help=about_spec),
        click.Option(
            ["--set", "sets"], multiple=True, metavar="KEY=VALUE", help="Set any field of the spec."
        ),
        click.Option(
            ["--start-timeout"],
            type=Seconds(0),
            metavar="S",
            help="The other tasks must be up by then (default: 60).",
        ),
        click.Option(
            ["--grace"], type=Seconds(0), metavar="S", help="From the order to stop to SIGKILL (default: 25)."
        ),
        click.Option(["--run-dir"], type=DIRECTORY, metavar="DIR", help="Where this task keeps its files."),
        click.Option(
            ["--bind"],
            metavar="ADDRESS",
            help="Listen at this host, or host:port, not at the task's own.",
        ),
        *(click.Option([name], **settings) for name, settings in SECURITY_OPTIONS.items()),
    ]


def _spellings(flag: str) -> list[str]:
    return [f"--{flag.replace('_', '-')}", f"--{flag}"]


def _start(
    role: Role,
    command: ProgramCommand,
    words: ProgramWords,
    spec: Path | None,
    sets: tuple[str, ...],
    options: dict[str, Any],
) -> int:
    """Become the task, which ends with an exit code of its own; with `--join`, own it and return its code."""
    words = _check_words(role, command, words)
    classic = [f"--{name}={value}" for name in _CLASSIC if (value := options.pop(name)) is not None]
    shortcuts = {name: value for name in _SHORTCUTS if (value := options.pop(name)) is not None}
    join = options.pop("join", None)
    runs_dir = options.pop("runs_dir", None)
    if join is None:
        flags = (*words.arguments, *classic)
        settings = {"spec": spec, "sets": sets, "shortcuts": shortcuts, "flags": flags, **options}
        _become_task(_assignment(role, **settings), words)
    from dtrain_cli.spec import SHORTCUTS

    given = {name for name, value in (options | shortcuts).items() if value is not None}
    allowed = _FOR_ADDRESS if is_address(join) else _FOR_RUN
    if spec or sets or classic or given - set(allowed):
        *others, last = (f"--{name.replace('_', '-')}" for name in allowed)
        raise SpecError(
            "--join takes the worker's place and everything else from the run; give only --runs-dir, "
            f"{', '.join(others)} and {last} beside it"
        )
    security = {SHORTCUTS[name][-1]: shortcuts[name] for name in _SECURITY if name in shortcuts}
    return _join(words, join, runs_dir, options.get("run_dir"), security)


def _check_words(name: str, command: ProgramCommand, words: ProgramWords) -> ProgramWords:
    """Return the program and its arguments, checked; only a server needs no program."""
    if words.foreign:
        raise SpecError(
            f"`dtrain {name}` runs a Python program; start any other executable yourself with TF_CONFIG set"
        )
    if words.program is not None:
        check_program_file(words.program)
        return command.check_arguments(words)
    if name == "task":
        raise SpecError("expected a program, such as `dtrain task PROGRAM.py`")
    if name != Role.PS:
        raise SpecError(f"expected a program, such as `dtrain {name} --spec SPEC --index 0 PROGRAM.py`")
    return words


def _assignment(role: Role | None, **settings: Any) -> "TaskAssignment":
    """Return the place of a task, whose run directory is there then; `settings` are `StandaloneStart`'s."""
    from dtrain.runs.files import RunFiles
    from dtrain_cli.plan.standalone_start import StandaloneStart
    from dtrain_cli.runs.index import check_fit

    assignment = StandaloneStart(role, **settings).assignment(os.environ)
    if assignment.run_dir is not None:
        files = RunFiles(assignment.run_dir)
        check_fit(files)
        files.create()
    return assignment


def _environment(assignment: "TaskAssignment") -> dict[str, str]:
    """Return the variables of a task; raise a `SpecError` if a secret of the spec has no value here."""
    from dtrain.config.sections import missing_secrets
    from dtrain.process.tensorflow import write_tf_config

    environment = {name: value for name, value in os.environ.items() if name not in _OF_ANOTHER_RUN}
    if reason := missing_secrets(assignment.spec.secrets, environment):
        raise SpecError(reason)
    environment |= assignment.spec.environment
    return environment | assignment.to_environment(write_tf_config(assignment.cluster, assignment.task))


def _become_task(assignment: "TaskAssignment", words: ProgramWords) -> NoReturn:
    from dtrain.process import private_variables

    environment = _environment(assignment)
    if assignment.private:
        private = private_variables.handed_over(assignment.private)
        os.set_inheritable(private, True)
        environment[private_variables.DESCRIPTOR] = str(private)
    program = str(words.program) if words.program else "-"  # a server runs none
    sys.stdout.flush()
    # The handler of this program ends with it; process 1 of a container would not hear SIGTERM until the task
    # has its own. The task unblocks it then.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    os.execve(sys.executable, [sys.executable, "-m", "dtrain.task", program, *words.arguments], environment)


def _work_in(work: Path, code: Path | None) -> None:
    import gzip
    import tempfile
    import zlib

    from dtrain.runs.files import open_own
    from dtrain_cli.code import BYTES_MAX, digest_of, link_farm, unpack

    try:
        work.mkdir(parents=True, exist_ok=True)
        if code is not None and code.is_file():
            with gzip.open(code) as file:
                data = file.read(2 * BYTES_MAX)
            # Pods that share `work` find it at one path each.
            store = Path(tempfile.gettempdir(), f"dtrain-code-{os.geteuid()}")
            store.mkdir(mode=0o700, exist_ok=True)
            os.close(open_own(store))
            link_farm(unpack(data, digest_of(data), store), work, store)
        elif code is not None:
            # In a volume of Kubernetes `..data` is the folder of the files; all beside it are links there.
            link_farm(code / "..data" if (code / "..data").is_dir() else code, work)
        os.chdir(work)
    except (OSError, EOFError, zlib.error) as error:
        why = getattr(error, "strerror", None) or f"{error}"
        raise SpecError(f"--work {work}: {getattr(error, 'filename', None) or code or work}: {why}") from None


def _become_command(assignment: "TaskAssignment", words: ProgramWords) -> NoReturn:
    """Become a foreign command with the variables of its place, and none of dtrain's secrets."""
    from dtrain_cli.plan.run_plan import foreign_variables
    from dtrain_cli.targets.signals import attend

    environment = _environment(assignment) | foreign_variables(assignment.task, assignment.cluster)
    sys.stdout.flush()
    if os.getpid() == 1:  # of a container: the kernel would drop the signals that a command does not handle
        os._exit(attend(words.arguments, environment))
    os.execvpe(words.arguments[0], words.arguments, environment)


def is_address(text: str) -> bool:
    return ":" in text and "/" not in text and not Path(text).exists()


def _join(
    words: ProgramWords, join: str, runs_dir: Path | None, run_dir: Path | None, security: dict[str, Any]
) -> int:
    from dtrain.runs.files import default_runs_dir
    from dtrain_cli.launch.join import joining_address, joining_run
    from dtrain_cli.launch.joining_worker import JoiningWorker

    assert words.program is not None
    if is_address(join):
        own = run_dir and run_dir.absolute()
        joining = joining_address(join, os.environ, security, runs_dir or default_runs_dir(), own)
    else:
        joining = joining_run(find(join, runs_dir), os.environ, security)
    for name in _OF_ANOTHER_RUN:
        os.environ.pop(name, None)
    return JoiningWorker(joining, words.program, words.arguments).run()


COMMANDS = (*(_role_command(role) for role in Role), _task_command())
