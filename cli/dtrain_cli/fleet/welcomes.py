"""The facts that an agent tells about its host: whether it fits the launcher, and its address. Pure."""

import ipaddress
import sys
from importlib.metadata import version

from dtrain.cluster.loopback import LOOPBACK
from dtrain.config import Host, NetworkSection
from dtrain_cli.agent.messages import Welcome
from dtrain_cli.fleet.link import HostError

HERE = f"{sys.version_info.major}.{sys.version_info.minor}"


def unfit(host: str, welcome: Welcome, own: str | None = None) -> str | None:
    """Return why the agent of a host cannot serve this launcher; None if it can.

    Args:
        host: its name.
        welcome: what the agent has told.
        own: the launcher's version of dtrain; None: the one that is installed.
    """
    own = own or version("dtrain")
    if welcome.version != own:
        return (
            f"{host}: {welcome.executable} has dtrain {welcome.version} there, and this is {own}; "
            "install the same version on both"
        )
    if welcome.python != HERE:
        return (
            f"{host}: {welcome.executable} is Python {welcome.python}, and this is {HERE}; name an equal one "
            "with `--set python=PATH`"
        )
    return None if welcome.no_room is None else f"{host}: {welcome.no_room}"


def address_of(host: Host, welcome: Welcome, network: NetworkSection, alone: bool) -> str:
    """Return the address at which other hosts reach the tasks of a host.

    Args:
        host: as the spec names it.
        welcome: what its agent has told.
        network: of the spec.
        alone: whether no other host has tasks, so that loopback will do.

    Raises:
        HostError: it has no such address.
    """
    found = host.address or _in_network(host, welcome, network) or welcome.reached_at
    if found is None and alone:
        found = LOOPBACK
    if found is None:
        raise HostError(
            f"{host.host}: its address is not known, because the login did not come by ssh; write it in the "
            f"spec as `hosts: [{{host: {host.host}, address: ...}}]`"
        )
    return found


def _in_network(host: Host, welcome: Welcome, network: NetworkSection) -> str | None:
    """Return the host's address in `network.interface`; None where nothing is said."""
    if network.interface is None:
        return None
    subnet = network.subnet
    for name, entries in welcome.addresses.items():
        for entry in entries:
            address = ipaddress.ip_interface(entry).ip
            wanted = name == network.interface if subnet is None else address in subnet
            if wanted and not address.is_link_local:
                return str(address)
    known = ", ".join(f"{name} {' '.join(entries)}" for name, entries in welcome.addresses.items())
    raise HostError(f"{host.host}: it has no address in {network.interface}; it has {known}")
