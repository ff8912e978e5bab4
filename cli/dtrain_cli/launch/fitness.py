"""The reasons why a spec that is right in itself cannot be launched: its engine, its files, its addresses.

`launch`, `plan` and `check` all ask here, before anything has been started.
"""

from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path

from dtrain.cluster.loopback import is_loopback
from dtrain.config import ROLES, Problem, RunSpec
from dtrain.config.choices import On, TlsMode
from dtrain.config.security_section import TLS_VARIABLES
from dtrain.config.task_environment import missing
from dtrain.errors import SpecError
from dtrain.process.access import secret_in_file
from dtrain.process.tls_material import read_tls_file
from dtrain_cli.code import password_problems
from dtrain_cli.placement.placing import hosts_of, place
from dtrain_cli.plan.ports import address_problems
from dtrain_cli.targets import vertex
from dtrain_cli.targets.kubernetes import fitness as kubernetes


def unfit(spec: RunSpec, environment: Mapping[str, str], *, foreign: bool, starts: bool) -> Iterator[Problem]:
    """Yield what is wrong.

    Args:
        spec: a valid spec.
        environment: of the user.
        foreign: whether any other command than a program of dtrain runs on it.
        starts: whether its tasks are to be started here; else they may be by hand, each on its host.

    Raises:
        SpecError: the environment says of `security` what makes no sense.
    """
    match spec.on:
        case On.LOCAL:
            counts = [count for role in ROLES[:3] if (count := getattr(spec.cluster, role))]
            if starts or any(isinstance(count, int) for count in counts):
                yield from address_problems(spec.cluster)
                yield from () if foreign else _certificates(spec, environment)
        case On.SSH:
            try:
                place(spec.cluster, hosts_of(spec), spec.place)
            except SpecError as error:
                key, _, text = str(error).partition(": ")
                yield (key,), text
        case On.SLURM if spec.slurm.servers is not None and spec.hosts:
            yield ("slurm", "servers"), "a job whose nodes `hosts` names has one part; leave one of them out"
        case On.KUBERNETES:
            yield from (*kubernetes.problems(spec), *password_problems(spec))
        case On.VERTEX:
            yield from (*vertex.problems(spec), *password_problems(spec))
    if spec.on is not On.KUBERNETES or spec.kubernetes.secret is None:
        yield from _secrets(spec, environment)


def _secrets(spec: RunSpec, environment: Mapping[str, str]) -> Iterator[Problem]:
    """Yield the secrets that cannot be had here."""
    if spec.on is not On.VERTEX and (reason := missing(spec.secrets, environment)):
        instead = "; or name a Secret that has them: kubernetes.secret" if spec.on is On.KUBERNETES else ""
        yield ("secrets",), f"{reason.removeprefix('secrets: ')}{instead}"
    try:
        secret_in_file(spec.security)
    except SpecError as error:
        yield ("security", "secret_file"), str(error)


def _certificates(spec: RunSpec, environment: Mapping[str, str]) -> Iterator[Problem]:
    """Yield the first file of TLS that a task here could not read."""
    security = spec.security.completed(environment)
    given = (getattr(spec.cluster, role) for role in ROLES)
    far = any(not is_loopback(address) for each in given if not isinstance(each, int) for address in each)
    if security.tls == TlsMode.OFF or (security.tls == TlsMode.AUTO and not far):
        return
    for role, name in product(ROLES, TLS_VARIABLES):
        own = (security.of_task(role, index) for index in range(spec.cluster.count(role)))
        for path in filter(None, dict.fromkeys(getattr(each, name) for each in own)):
            try:
                read_tls_file(Path(path).expanduser(), private=name == "key_file")
            except SpecError as error:
                yield ("security", name), str(error)
                return
