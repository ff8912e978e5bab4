"""The `network` section: the ports and addresses that tasks on other hosts get."""

import ipaddress
import re
from collections.abc import Iterator
from dataclasses import dataclass

from dtrain.config.cluster_section import address_problem
from dtrain.config.problems import Problem

AUTO = "auto"
_PORTS = re.compile(r"([0-9]{1,5})-([0-9]{1,5})")


@dataclass(frozen=True)
class NetworkSection:
    """The ports and addresses of tasks on other hosts.

    Attributes:
        ports: from which each host takes its tasks' ports, ``20000-20999``; None: any free ones.
        interface: the network of whose addresses each host's is taken, ``10.0.0.0/24``, or the name of an
            interface; None: the address at which the host was reached.
        bind: `auto`, each task listens on its own address; or the address on which all listen, such as
            0.0.0.0 where addresses are translated.
    """

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
        """Yield the mistakes that types do not exclude."""
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
