"""The `cluster` section: how many tasks, or where they are."""

from collections.abc import Iterator
from dataclasses import dataclass

import dtrain.cluster as clusters
from dtrain.cluster.loopback import is_loopback
from dtrain.config.problems import Problem

ADDRESS_MAX = 300
"""Characters: a DNS name has at most 253."""
TASKS_MAX = 10**6
"""Tasks of a role: more than any network has addresses for."""
ROLES = tuple(role.value for role in clusters.Role)


@dataclass(frozen=True)
class ClusterSection:
    """The tasks of each role: a number, for which ports of this machine are picked, or addresses."""

    chief: int | tuple[str, ...] = 0
    worker: int | tuple[str, ...] = 0
    ps: int | tuple[str, ...] = 0
    evaluator: int | tuple[str, ...] = 0

    def __str__(self) -> str:
        return clusters.tasks_text({role: self.count(role) for role in ROLES})

    def count(self, role: str) -> int:
        """Return the number of tasks of a role."""
        value: int | tuple[str, ...] = getattr(self, role)
        return value if isinstance(value, int) else len(value)

    @property
    def trains_elsewhere(self) -> bool:
        """Whether a task that trains has an address that is not one of this host alone."""
        written = [each for each in (self.chief, self.worker) if not isinstance(each, int)]
        return any(not is_loopback(address) for addresses in written for address in addresses)

    @property
    def control_host(self) -> clusters.TaskId:
        """The task that hosts the control plane; see `ClusterSpec.control_host`."""
        tasks = {
            clusters.Role(role): dict.fromkeys(range(min(1, self.count(role))), "") for role in ROLES[:3]
        }
        host = clusters.ClusterSpec(tasks).control_host
        return clusters.TaskId(clusters.Role.CHIEF, 0) if host is None else host

    def problems(self) -> Iterator[Problem]:
        """Yield the mistakes that types do not exclude."""
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
