"""The sections of a spec about other machines: hosts, what is sent there, and engines that run tasks."""

import ipaddress
import re
from collections.abc import Iterator, Sequence
from typing import Any, Literal, TypedDict, get_args

import msgspec

from dtrain.cluster.hosts import HOSTS_MAX, NAME_MAX, expand_hosts
from dtrain.config.plain_data import AtLeast1, Problem, below
from dtrain.config.sections import address_problem
from dtrain.errors import SpecError

SPREAD = "spread"
PACK = "pack"
_SLOTS = r"(?::(?P<slots>[0-9]{1,6}))?"
_WORD = re.compile(r"(?P<names>(?:[^,:\[\]]|\[[^\[\]]*\])+)" + _SLOTS)
_IPV6 = re.compile(r"\s*(?P<user>[^,:\[\]\s]+@)?\[(?P<address>[0-9A-Fa-f:.]*:[^,\[\]]*)\]\s*" + _SLOTS)
_NAME = re.compile(r"[A-Za-z0-9_@%.:-]+")
_EXAMPLE = "h1,h2:4 or n[001-003]:4"


class Host(msgspec.Struct, frozen=True):
    """A machine that tasks may run on (docs/reference/spec.md#hosts).

    `host` is its name as ssh or the engine knows it; `address`: where other hosts reach its tasks.
    """

    host: str
    slots: int | None = None
    address: str | None = None
    spare: bool = False

    def __str__(self) -> str:
        user, at, name = self.host.rpartition("@")
        written = f"{user}{at}[{name}]" if ":" in name else self.host
        return written if self.slots is None else f"{written}:{self.slots}"


WrittenHosts = str | tuple[str | Host, ...]
"""A text such as ``h1,h2:4``, or a list of such texts and of hosts."""
Places = str | dict[Literal["chief", "worker", "ps", "evaluator"], str | tuple[str, ...]]
"""For all roles, or for each: `spread`, `pack`, the name of a host, or a list of names."""


def read_hosts(written: WrittenHosts, hosts_max: int = HOSTS_MAX) -> list[Host]:
    """Return the hosts of a spec or an option, in its order.

    Raises:
        SpecError: it is no such list, has more than `hosts_max` hosts, or a host stands there twice.
    """
    entries = (written,) if isinstance(written, str) else written
    hosts: list[Host] = []
    for entry in entries:
        hosts += _read_words(entry, hosts_max - len(hosts)) if isinstance(entry, str) else [entry]
    for problem in map(_host_problem, hosts):
        if problem is not None:
            raise SpecError(problem)
    if len(hosts) > hosts_max:
        raise SpecError(f"expected at most {HOSTS_MAX} hosts, found more")
    seen: set[str] = set()
    for host in hosts:
        if host.host in seen:
            raise SpecError(f"{host.host} stands there twice; its slots say how many tasks it takes")
        seen.add(host.host)
    return hosts


def hosts_problems(written: WrittenHosts, place: Places) -> Iterator[Problem]:
    names: set[str] | None = None
    wrong = None if isinstance(written, str) else next(_entry_problems(written), None)
    try:
        names = {host.host for host in read_hosts(written) if not host.spare} if wrong is None else None
        if names is not None and written and not names:
            wrong = ("hosts",), "expected a host that is not spare, found none"
    except SpecError as error:
        wrong = ("hosts",), str(error)
    if wrong is not None:
        yield wrong
    if place and not written:
        yield ("place",), "says on which host a task runs, and hosts names none"
    elif isinstance(place, dict):
        for role, rule in place.items():
            yield from ((("place", role), text) for text in _rule_problems(rule, names))
    elif place not in (SPREAD, PACK):
        found = f"a mapping such as {{ps: {SPREAD}, chief: h1}}, found {place[:80]!r}"
        yield ("place",), f"expected {SPREAD}, {PACK}, or {found}"


def _entry_problems(entries: Sequence[str | Host]) -> Iterator[Problem]:
    room = HOSTS_MAX
    for index, entry in enumerate(entries):
        try:
            room -= len(read_hosts((entry,), room))
        except SpecError as error:
            yield ("hosts", index), str(error)


def _read_words(text: str, hosts_max: int) -> Iterator[Host]:
    place = 0
    while True:
        found = _IPV6.match(text, place) or _WORD.match(text, place)
        end = found.end() if found else -1
        if found is None or text[end : end + 1] not in ("", ","):
            brackets = "; an IPv6 address stands in brackets: [fd00::1]:4" if text.count(":") > 1 else ""
            raise SpecError(f"expected hosts such as {_EXAMPLE}, found {text[:80]!r}{brackets}")
        slots = None if found["slots"] is None else int(found["slots"])
        if found.re is _IPV6:
            hosts = [f"{found['user'] or ''}{found['address']}"]
        else:
            hosts = expand_hosts(found["names"].strip(), hosts_max)
        hosts_max -= len(hosts)
        yield from (Host(name, slots) for name in hosts)
        if end == len(text):
            return
        place = end + 1


def _host_problem(host: Host) -> str | None:
    """Return why a host cannot be one; a name with a leading dash would be an option of ssh."""
    for what, name in (("the name of a host", host.host), ("an address", host.address)):
        if name is None:
            continue
        if not _NAME.fullmatch(name) or name.startswith("-") or len(name) > NAME_MAX:
            return f"expected {what} without spaces, slashes or a leading dash, found {name[:80]!r}"
    if host.slots is not None and host.slots < 1:
        return f"expected at least 1 slot for {host.host}, found {host.slots}"
    return None


def _rule_problems(rule: str | tuple[str, ...], names: set[str] | None) -> Iterator[str]:
    if not rule:
        yield f"expected {SPREAD}, {PACK}, a host or a list of hosts, found nothing"
    elif names is not None:
        wanted = rule if isinstance(rule, tuple) else () if rule in (SPREAD, PACK) else (rule,)
        unknown = next((name for name in wanted if name not in names), None)
        if unknown is not None:
            known = ", ".join([*sorted(names)[:8], *(["..."] if len(names) > 8 else [])])
            wanted_there = "none of the hosts that have tasks at the start"
            yield f"{unknown[:80]!r} is {wanted_there}, which are {known}"


CodeSection = TypedDict("CodeSection", {"from": str, "exclude": tuple[str, ...]}, total=False)
"""`from`: the folder that is sent, from the working directory, which is the default. `exclude`: names and
patterns of what is left out, as `.gitignore` has them, with a slash at the end for folders."""


def code_problems(section: CodeSection) -> Iterator[Problem]:
    folder = section.get("from", ".")
    if not folder or "\0" in folder:
        yield ("from",), f"expected a folder, found {folder!r}"
    for index, pattern in enumerate(section.get("exclude", ())):
        if not pattern.strip("/") or "\0" in pattern or "\n" in pattern:
            yield ("exclude", index), f"expected a name or pattern such as data/, found {pattern!r}"
        elif ".." in pattern.split("/"):
            yield ("exclude", index), f"expected a pattern below the folder, found {pattern!r}"


AUTO = "auto"
_PORTS = re.compile(r"([0-9]{1,5})-([0-9]{1,5})")


class NetworkSection(msgspec.Struct, frozen=True):
    """The ports and addresses of tasks on other hosts (docs/reference/spec.md#network)."""

    ports: str | None = None
    interface: str | None = None
    bind: str = AUTO

    @property
    def port_range(self) -> range | None:
        """The ports to take from; None for any."""
        found = _PORTS.fullmatch(self.ports or "")
        return range(int(found[1]), int(found[2]) + 1) if found else None

    @property
    def subnet(self) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
        """The network to take addresses from; None where `interface` is a name, or nothing."""
        try:
            return ipaddress.ip_network(self.interface or "", strict=False)
        except ValueError:
            return None

    def problems(self) -> Iterator[Problem]:
        ports = self.port_range
        if self.ports is not None and (ports is None or not 0 < ports.start < ports.stop <= 65536):
            yield ("ports",), f"expected a range of ports such as 20000-20999, found {self.ports!r}"
        name = self.interface
        if name is not None and self.subnet is None and ("/" in name or not 0 < len(name) < 16):
            yield (
                ("interface",),
                f"expected a network such as 10.0.0.0/24, or the name of an interface, found {name[:80]!r}",
            )
        if self.bind != AUTO and (not self.bind or address_problem(f"{self.bind}:1") is not None):
            yield ("bind",), f"expected {AUTO} or an address such as 0.0.0.0, found {self.bind[:80]!r}"


_TIME = re.compile(r"[0-9]+(-[0-9]{1,2}(:[0-9]{1,2}){0,2}|(:[0-9]{1,2}){0,2})")
EARLY_S = 60
"""By so much Slurm may signal a job earlier than it was asked to (--signal in sbatch(1))."""
_SLURM_WORD = re.compile(r"[A-Za-z0-9_.,:+@/-]+")
_OWN = {
    "--nodes": "slurm.nodes",
    "-N": "slurm.nodes",
    "--time": "slurm.time",
    "-t": "slurm.time",
    "--partition": "slurm.partition",
    "-p": "slurm.partition",
    "--account": "slurm.account",
    "-A": "slurm.account",
    "--requeue": "slurm.requeue",
    "--no-requeue": "slurm.requeue",
    "--signal": "slurm.grace_s",
    "--job-name": "name",
    "-J": "name",
    "--open-mode": None,
    "--output": None,
    "-o": None,
    "--error": None,
    "-e": None,
    "--wrap": None,
    "--parsable": None,
}
"""Options that a job gets from dtrain, and the key of the spec that says them."""


class ServerNodesSection(msgspec.Struct, frozen=True):
    """The nodes of another kind for the chief, the evaluator and the servers of a run."""

    nodes: AtLeast1[int] = 1
    partition: str | None = None
    options: tuple[str, ...] = ()

    def problems(self) -> Iterator[Problem]:
        yield from _word_problems(self, "partition")
        yield from _options_problems(self.options)


class SlurmSection(msgspec.Struct, frozen=True):
    """The job of a run that is handed to Slurm (docs/reference/spec.md#slurm)."""

    nodes: AtLeast1[int] | None = None
    time: str | int | None = None
    partition: str | None = None
    account: str | None = None
    requeue: bool = True
    grace_s: int = 120
    options: tuple[str, ...] = ()
    setup: tuple[str, ...] = ()
    servers: ServerNodesSection | None = None

    @property
    def time_s(self) -> int:
        """The time limit in seconds; 0: it is the partition's, or there is none."""
        days, dash, rest = str(self.time or 0).rpartition("-")
        numbers = [int(number) for number in rest.split(":")]
        units = (3600, 60, 1) if dash or len(numbers) == 3 else (60, 1)
        return int(days or 0) * 86400 + sum(n * unit for n, unit in zip(numbers, units, strict=False))

    @property
    def notice_s(self) -> int:
        """How many seconds before the time limit Slurm is asked to signal the job.

        It is at most a quarter of a time that is hardly longer than `grace_s`: the job would be told to stop
        as soon as it has begun.
        """
        short = 0 < self.time_s <= self.grace_s + EARLY_S
        return min(self.grace_s, max(1, self.time_s // 4)) if short else self.grace_s

    def problems(self) -> Iterator[Problem]:
        if self.time is not None and not _TIME.fullmatch(str(self.time)):
            yield ("time",), f"expected a time such as 2:00:00, 1-12:00 or minutes, found {self.time!r}"
        yield from _word_problems(self, "partition", "account")
        if not 1 <= self.grace_s <= 65535:
            yield (
                ("grace_s",),
                f"expected seconds from 1 to 65535, as --signal takes them, found {self.grace_s}",
            )
        yield from _options_problems(self.options)
        for index, line in enumerate(self.setup):
            if not line.isprintable():
                yield ("setup", index), f"expected one line for the job's shell, found {line[:80]!r}"
        if self.servers is not None:
            yield from below(("servers",), self.servers.problems())


def _word_problems(section: SlurmSection | ServerNodesSection, *names: str) -> Iterator[Problem]:
    for name in names:
        word = getattr(section, name)
        if word is not None and (not _SLURM_WORD.fullmatch(word) or word.startswith("-")):
            yield (name,), f"expected a name, found {word[:80]!r}"


def _options_problems(options: tuple[str, ...]) -> Iterator[Problem]:
    for index, option in enumerate(options):
        if problem := _option_problem(option):
            yield ("options", index), problem


def _option_problem(option: str) -> str | None:
    if not option.startswith("-") or option.strip("-") == "" or not option.isprintable():
        return f"expected an option of sbatch such as --constraint=avx2, found {option[:80]!r}"
    name = option.partition("=")[0] if option.startswith("--") else option[:2]
    if name not in _OWN:
        return None
    key = _OWN[name]
    return f"{name} is set by dtrain; say {key} instead" if key else f"{name} is set by dtrain itself"


RoleName = Literal["chief", "worker", "ps", "evaluator"]
_QUANTITY = re.compile(r"[0-9]+(\.[0-9]+)?(m|k|[MGTPE]i?|Ki)?")
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_DNS_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_UNITS = {"": 1.0, "m": 1e-3, "k": 1e3, "Ki": 1024.0}
_RESOURCE = re.compile(r"[a-z0-9]([-a-z0-9./]{0,314}[a-z0-9])?")
RESOURCES = {"cpu": "1", "memory": "1Gi", "ephemeral-storage": "4Gi"}
"""The share of a node that each pod gets, where the spec does not say another."""


def _resource_problems(resources: dict[str, float | str]) -> Iterator[Problem]:
    for name, value in resources.items():
        found = value if isinstance(value, str) else f"{value:g}"
        bytes_alone = name in ("memory", "ephemeral-storage") and value is not found
        if not _RESOURCE.fullmatch(name):
            yield (name,), f"expected a resource such as cpu or nvidia.com/gpu, found {name[:60]!r}"
        elif not _QUANTITY.fullmatch(found) or value == 0 or bytes_alone:
            yield (name,), f"expected a quantity above 0 such as 500m or 8Gi, found {found[:60]!r}"


class VolumeSection(msgspec.Struct, frozen=True):
    """The disk of the run directory, which outlives the pods: a `claim` that is there, or a new one."""

    claim: str | None = None
    size: str = "10Gi"
    storage_class: str | None = None
    access: Literal["ReadWriteOnce", "ReadWriteMany", "ReadWriteOncePod"] = "ReadWriteOnce"

    @property
    def shared(self) -> bool:
        """Whether pods on several nodes can have it at once."""
        return self.access == "ReadWriteMany"

    def problems(self) -> Iterator[Problem]:
        if not _QUANTITY.fullmatch(self.size):
            yield ("size",), f"expected a quantity such as 10Gi, found {self.size[:60]!r}"
        for name in ("claim", "storage_class"):
            if reason := _misnamed(getattr(self, name), _DNS_NAME):
                yield (name,), reason


class KubernetesSection(msgspec.Struct, frozen=True):
    """The namespace, image and resources of a run's pods (docs/reference/spec.md#kubernetes)."""

    image: str | None = None
    namespace: str | None = None
    context: str | None = None
    queue: str | None = None
    jobset: bool | Literal["auto"] = "auto"
    resources: dict[RoleName, dict[str, float | str]] = msgspec.field(default_factory=dict)
    pod: dict[str, Any] = msgspec.field(default_factory=dict)
    volume: VolumeSection = msgspec.field(default_factory=VolumeSection)
    secret: str | None = None
    code_in: str | None = None

    def resources_of(self, role: str) -> dict[str, str]:
        """Return the quantity of each resource that a pod of a role gets."""
        said = next((found for each, found in self.resources.items() if each == role), {})
        given = {key: each if isinstance(each, str) else f"{each:g}" for key, each in said.items()}
        return RESOURCES | given

    def cores_of(self, role: str) -> float:
        """Return the cores of a pod as a number: ``500m`` is 0.5."""
        cpu = self.resources_of(role)["cpu"]
        number = cpu.rstrip("mkKMGTPEi")
        return float(number) * _UNITS.get(cpu.removeprefix(number), 1.0)

    def as_jobset(self, needs_end: bool) -> bool:
        """Return whether the tasks are one JobSet; `needs_end`: some of them never end by themselves."""
        return (self.queue is not None or needs_end) if self.jobset == "auto" else self.jobset

    def problems(self) -> Iterator[Problem]:
        for name, pattern in (("namespace", _LABEL), ("queue", _DNS_NAME), ("secret", _DNS_NAME)):
            if reason := _misnamed(getattr(self, name), pattern):
                yield (name,), reason
        yield from _image_problems(self.image, self.code_in, "registry/team/dtrain:1")
        for role, resources in self.resources.items():
            yield from below(("resources", role), _resource_problems(resources))
        for name in self.pod.keys() - {"metadata", "spec", *get_args(RoleName)}:
            known = f"metadata, spec or a role, as in {{spec: {{nodeSelector: ...}}}}, found {name[:60]!r}"
            yield ("pod",), f"expected the fields of a pod's template, {known}"
        yield from below(("volume",), self.volume.problems())


def _misnamed(name: str | None, pattern: re.Pattern[str]) -> str | None:
    if name is None or pattern.fullmatch(name):
        return None
    return f"expected small letters, digits and '-', with a letter or digit at both ends, found {name[:60]!r}"


def _image_problems(image: str | None, code_in: str | None, example: str) -> Iterator[Problem]:
    if image is not None and (not image or any(map(str.isspace, image))):
        yield ("image",), f"expected an image such as {example}, found {image[:60]!r}"
    if code_in is not None and not code_in.startswith("/"):
        yield ("code_in",), f"expected a folder of the image such as /app, found {code_in[:60]!r}"
