"""Everything that a run on Kubernetes needs from this machine: its spec, code, secrets and certificates."""

import secrets
import string
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from dtrain.cluster import ClusterSpec, Role, TaskId
from dtrain.cluster.certificate_names import LeafNames, joined_worker, task_name
from dtrain.config import RunSpec
from dtrain.config.choices import TlsMode
from dtrain.errors import SpecError
from dtrain.formats.regular_file import read_regular
from dtrain.process.access import secret_in_file
from dtrain.process.assignment import run_id_by_hand
from dtrain.process.secret import new_secret
from dtrain.process.tls_material import TlsMaterial
from dtrain_cli.certificates.authority import AUTHORITY_DAYS, make_authority
from dtrain_cli.code import check_texts, code_files, may_leave, password_problems
from dtrain_cli.console.streams import say
from dtrain_cli.launch.options import LaunchOptions
from dtrain_cli.launch.request import read_request
from dtrain_cli.plan.run_plan import Workload
from dtrain_cli.targets.kubernetes.code import Code
from dtrain_cli.targets.kubernetes.run import SUFFIX_LENGTH, KubernetesRun, object_name

CODE_FOLDER = "/etc/dtrain/code"
FILE_BYTES_MAX = 1 << 20
_LETTERS = string.ascii_lowercase + string.digits


def gather(options: LaunchOptions, environment: Mapping[str, str], name: str | None = None) -> KubernetesRun:
    """Return the run that the options describe.

    Args:
        options: of `dtrain launch` or `plan`.
        environment: the variables of the user.
        name: of the objects of a run that goes on; None: one that no other run has.

    Raises:
        SpecError: the spec is wrong, or cannot run on Kubernetes; a file or a secret is not there.
        RunError: the code cannot be listed.
    """
    workload, spec = read_request(options, environment)
    spec = workload.named(spec)
    for path, text in password_problems(spec, workload.arguments):
        raise SpecError(f"{path[0]}: {text}")
    suffix = "".join(secrets.choice(_LETTERS) for _ in range(SUFFIX_LENGTH))
    code, command = _code(spec, workload)
    run = KubernetesRun(name or object_name(spec.name, suffix), spec, code, command)
    if spec.kubernetes.secret is not None:
        return run
    secret = None if run.foreign else secret_in_file(spec.security) or new_secret()
    values = {name: environment[name] for name in spec.secrets}
    check_texts(code.files, [*([secret] if secret else []), *values.values()])
    return replace(
        run,
        secret=secret,
        secrets=values,
        certificates={} if run.foreign else _certificates(spec, run.addresses),
    )


def _code(spec: RunSpec, workload: Workload) -> tuple[Code, tuple[str, ...]]:
    """Return the files that travel, and the program and its arguments as they are called there."""
    folder = Path((spec.code or {}).get("from", "."))
    there = spec.kubernetes.code_in or CODE_FOLDER
    if workload.program is None:
        command = ("--", *workload.arguments)
    elif spec.code is None and spec.kubernetes.code_in is None:
        folder = workload.program.parent
        command = (f"{there}/{workload.program.name}", *workload.arguments)
    else:
        command = (f"{there}/{_below(workload.program, folder)}", *workload.arguments)
    if spec.kubernetes.code_in is not None:
        return Code(there), command
    if spec.code is not None:
        names = code_files(folder, spec.code.get("exclude", ()))
    elif workload.program is not None:
        names = [workload.program.name]
    else:
        names = [word for word in workload.arguments if word.endswith(".py") and _travels(word)]
    names = may_leave(folder, names, spec.security, say)
    return Code(there if names else "", {name: _read(folder / name) for name in names}), command


def _below(program: Path, folder: Path) -> str:
    try:
        return program.absolute().relative_to(folder.absolute()).as_posix()
    except ValueError:
        raise SpecError(
            f"{program}: the pods have the code of {folder.absolute()}, and the program is not below it; see "
            "code.from"
        ) from None


def _travels(word: str) -> bool:
    """Return whether a word of a foreign command names a script that pods can have at the same place."""
    path = Path(word)
    return path.is_file() and not path.is_absolute() and ".." not in path.parts


def _read(path: Path) -> bytes:
    """Return a file of the code; a link as the file it leads to, of which a ConfigMap knows nothing."""
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise SpecError(
                f"{path}: a ConfigMap holds less than {FILE_BYTES_MAX} bytes; leave the file out by "
                "code.exclude, or put the code into the image and say its folder there: kubernetes.code_in"
            )
        return read_regular(path, FILE_BYTES_MAX)
    except OSError as error:
        raise SpecError(f"{path}: cannot read the code: {error.strerror}") from None


def _certificates(spec: RunSpec, addresses: ClusterSpec) -> dict[str, TlsMaterial]:
    """Return a certificate for each task: those of the user's files, or of an authority that ends with us."""
    security = spec.security
    tasks = [*addresses.tasks(), *(TaskId(Role.EVALUATOR, i) for i in range(spec.cluster.count("evaluator")))]
    if security.ca_file is not None and security.tls != TlsMode.OFF:
        found = {}
        for task in tasks:
            own = security.of_task(task.role, task.index)
            files = (own.ca_file, own.cert_file, own.key_file)
            found[task_name(task)] = TlsMaterial(*(_read(Path(file or "").expanduser()) for file in files))
        return found
    if security.tls != TlsMode.REQUIRED:
        return {}
    run_id = run_id_by_hand(addresses)
    authority = make_authority(run_id)
    names = [*map(task_name, tasks), joined_worker()]
    return {name: authority.issue(LeafNames.of(run_id, name), AUTHORITY_DAYS) for name in names}
