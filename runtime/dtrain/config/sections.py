"""The sections of a spec but for training, faults and other machines (docs/reference/spec.md)."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import msgspec
from msgspec.structs import replace

import dtrain.cluster as clusters
from dtrain.config.choices import RestartPolicy, TlsMode
from dtrain.config.plain_data import AtLeast0, AtLeast1, Problem
from dtrain.errors import SpecError

ADDRESS_MAX = 300
"""Characters: a DNS name has at most 253."""
TASKS_MAX = 10**6
"""Tasks of a role: more than any network has addresses for."""
ROLES = tuple(role.value for role in clusters.Role)


class ClusterSection(msgspec.Struct, frozen=True):
    """The tasks of each role: a number, for which ports of this machine are picked, or addresses."""

    chief: int | tuple[str, ...] = 0
    worker: int | tuple[str, ...] = 0
    ps: int | tuple[str, ...] = 0
    evaluator: int | tuple[str, ...] = 0

    def __str__(self) -> str:
        return clusters.tasks_text({role: self.count(role) for role in ROLES})

    def count(self, role: str) -> int:
        value: int | tuple[str, ...] = getattr(self, role)
        return value if isinstance(value, int) else len(value)

    @property
    def control_host(self) -> clusters.TaskId:
        """The task that hosts the control plane; see `ClusterSpec.control_host`."""
        tasks = {
            clusters.Role(role): dict.fromkeys(range(min(1, self.count(role))), "") for role in ROLES[:3]
        }
        host = clusters.ClusterSpec(tasks).control_host
        return clusters.TaskId(clusters.Role.CHIEF, 0) if host is None else host

    def problems(self) -> Iterator[Problem]:
        for role in ROLES:
            if self.count(role) < 0:
                yield (
                    (role,),
                    f"expected a count of at least 0 or a list of addresses, found {self.count(role)}",
                )
            elif self.count(role) > TASKS_MAX:
                yield (role,), f"expected at most {TASKS_MAX} tasks, found {self.count(role)}"
            elif role in ("chief", "evaluator") and self.count(role) > 1:
                yield (role,), f"a cluster has at most one {role}, found {self.count(role)}"
        if self.chief == 0 and self.worker == 0:
            yield (), "no task trains: expected a chief or at least one worker"
        seen: dict[str, str] = {}
        for role in ROLES:
            value = getattr(self, role)
            for index, address in enumerate(() if isinstance(value, int) else value):
                if reason := address_problem(address):
                    yield (role, index), reason
                elif address in seen:
                    yield (role, index), f"{address} is already the address of {seen[address]}"
                seen.setdefault(address, f"{role}:{index}")


def address_problem(address: str) -> str | None:
    """Why a text is no ``host:port`` address (``[::1]:2222`` for IPv6), or None if it is one."""
    host, colon, port = address.rpartition(":")
    if len(address) > ADDRESS_MAX:
        return f"expected host:port of at most {ADDRESS_MAX} characters, found {address[:60]!r}..."
    if any(character.isspace() or character in "/@" for character in address):
        return (
            "expected host:port without spaces, slashes, a user's name or a scheme such as http://, found "
            f"{address!r}"
        )
    if not colon or not host:
        return f"expected host:port, found {address!r}"
    if not port.isdecimal() or len(port) > 5 or not 0 < int(port) < 65536:
        return f"expected a port from 1 to 65535 after the last colon, found {address!r}"
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        return f"an IPv6 address needs brackets, such as [::1]:2222, found {address!r}"
    return None


class DataSection(msgspec.Struct, frozen=True):
    """The number of pipelines that a function of an `InputContext` makes (docs/reference/spec.md#data)."""

    pipelines: AtLeast1[int] | None = None


class CheckpointSection(msgspec.Struct, frozen=True):
    """When to save (always at step 0 and the end), how many checkpoints to keep, where copies go."""

    every_s: Annotated[float, msgspec.Meta(ge=0.1)] | None = 30.0
    every_steps: AtLeast1[int] | None = None
    keep: AtLeast1[int] = 5
    keep_every_n_hours: AtLeast0[float] | None = None
    remote: str | None = None
    inner: bool = False

    def problems(self) -> Iterator[Problem]:
        if self.remote is not None and "://" not in self.remote:
            yield ("remote",), f"expected a URL such as s3://bucket/run, found {self.remote!r}"


class RestartSection(msgspec.Struct, frozen=True):
    """The restarts of tasks of one role. The pause doubles; 60 healthy seconds reset the count."""

    policy: RestartPolicy = RestartPolicy.ON_FAILURE
    max: AtLeast0[int] = 3
    backoff_s: AtLeast0[float] = 1.0


NO_RESTART = RestartSection(policy=RestartPolicy.NEVER)
DEFAULT_RESTART = {role: RestartSection(max=1 if role == "chief" else 3) for role in ROLES}


GRACE_S = {True: 10.0, False: 25.0}
"""Under a launcher, and without one: an engine that stops machines gives their tasks 30 s."""


class WaitSection(msgspec.Struct, frozen=True):
    """Deadlines for waits on other tasks, in seconds (docs/reference/spec.md#wait)."""

    start_s: AtLeast0[float] = 60.0
    server_s: AtLeast0[float] = 60.0
    leader_s: AtLeast0[float] = 60.0
    grace_s: AtLeast0[float] | None = None

    def grace(self, launched: bool) -> float:
        """Return the time from the order to stop to SIGKILL, under a launcher or without one."""
        return GRACE_S[launched] if self.grace_s is None else self.grace_s


INSECURE = "DTRAIN_INSECURE"
TLS_VARIABLES = {"ca_file": "DTRAIN_TLS_CA", "cert_file": "DTRAIN_TLS_CERT", "key_file": "DTRAIN_TLS_KEY"}
"""The variables that give the paths which neither the spec nor an option gives; never their contents."""
_IN_BRACES = re.compile(r"\{(?!role\}|index\})[^}]*\}?")


class SecuritySection(msgspec.Struct, frozen=True):
    """The proofs that tasks ask of each other (docs/reference/spec.md#security)."""

    tls: TlsMode = TlsMode.AUTO
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    secret_file: str | None = None
    insecure: bool = False

    def problems(self) -> Iterator[Problem]:
        for name in (*TLS_VARIABLES, "secret_file"):
            path = getattr(self, name)
            if path == "":
                yield (name,), 'expected the path of a file, found ""'
            if name in ("cert_file", "key_file") and (wrong := _IN_BRACES.search(path or "")):
                yield (name,), f"expected {{role}} and {{index}} alone in braces, found {wrong[0]}"

    def completed(self, environment: Mapping[str, str]) -> "SecuritySection":
        """Return the section with what only the environment says of it.

        Raises:
            SpecError: a variable has no such value, or some files of TLS are given and others are not.
        """
        given: dict[str, Any] = {
            name: value
            for name, variable in TLS_VARIABLES.items()
            if getattr(self, name) is None and (value := environment.get(variable))
        }
        insecure = environment.get(INSECURE, "")
        if insecure not in ("", "0", "1"):
            raise SpecError(f"{INSECURE} in the environment: expected 1 or 0, found {insecure!r}")
        section = replace(self, **given, insecure=self.insecure or insecure == "1")
        for path, problem in section.problems():
            raise SpecError(f"{TLS_VARIABLES.get(str(path[0]), path[0])} in the environment: {problem}")
        missing = [name for name in TLS_VARIABLES if getattr(section, name) is None]
        if section.tls != TlsMode.OFF and 0 < len(missing) < len(TLS_VARIABLES):
            remedies = [
                f"--tls-{name.removesuffix('_file')}, {TLS_VARIABLES[name]} or security.{name}"
                for name in missing
            ]
            raise SpecError(
                "security: TLS needs ca_file, cert_file and key_file, found no "
                f"{' and no '.join(missing)}; give {', and '.join(remedies)}"
            )
        return section

    def of_task(self, role: str, index: int | str) -> "SecuritySection":
        """Return the section with the paths of one task's certificate and key."""

        def path(template: str | None) -> str | None:
            return template and template.replace("{role}", role).replace("{index}", str(index))

        return replace(self, cert_file=path(self.cert_file), key_file=path(self.key_file))


_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OWN = ("DTRAIN_", "TF_CONFIG")
"""Beginnings of names that dtrain itself sets."""
VALUE_MAX = 100_000
"""Characters: Linux takes variables of at most 128 KiB."""


def environment_problems(environment: Mapping[str, str], secrets: Sequence[str]) -> Iterator[Problem]:
    for name, value in environment.items():
        if reason := _misnamed(name):
            yield ("environment", name), reason
        if "\0" in value or len(value) > VALUE_MAX:
            yield ("environment", name), f"expected a text without NUL, of at most {VALUE_MAX} characters"
    for index, name in enumerate(secrets):
        if reason := _misnamed(name):
            yield ("secrets", index), reason
        elif name in environment:
            yield ("secrets", index), f"{name} stands in environment, too, where everybody may read it"


def missing_secrets(secrets: Sequence[str], environment: Mapping[str, str]) -> str | None:
    """Return why tasks cannot get the secrets of a spec from this environment; None if they can."""
    absent = [name for name in secrets if name not in environment]
    if not absent:
        return None
    are = "is" if len(absent) == 1 else "are"
    return f"secrets: {', '.join(absent)} {are} not set in the environment here"


def _misnamed(name: str) -> str | None:
    if not _NAME.fullmatch(name):
        return f"expected the name of a variable, of letters, digits and _, found {name[:80]!r}"
    if name.startswith(_OWN):
        return f"{name} is a variable that dtrain sets itself"
    return None
