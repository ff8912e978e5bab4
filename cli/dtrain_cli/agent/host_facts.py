"""The host of an agent, as it introduces it to its launcher."""

import ipaddress
import os
import socket
import sys
import time
from collections.abc import Mapping
from importlib.metadata import version

from dtrain.errors import RunError
from dtrain_cli.agent.messages import Welcome
from dtrain_cli.agent.run_folders import check_room, run_folder


def welcome(environment: Mapping[str, str]) -> Welcome:
    """Return the facts about this host; `environment` says how the login came in."""
    return Welcome(
        version=version("dtrain"),
        python=f"{sys.version_info.major}.{sys.version_info.minor}",
        executable=sys.executable,
        host=socket.gethostname(),
        monotonic_s=time.monotonic(),
        cores=len(os.sched_getaffinity(0)),
        reached_at=reached_at(environment.get("SSH_CONNECTION", "")),
        addresses=_addresses(),
        no_room=_no_room(),
    )


def reached_at(connection: str) -> str | None:
    """Return the server's address in SSH_CONNECTION (ssh(1)): client, its port, server, its port."""
    words = connection.split()
    return words[2].partition("%")[0] if len(words) == 4 and words[2] != "UNKNOWN" else None


def _no_room() -> str | None:
    """Return why the disk of a run's folder takes no more; None if it does."""
    folder = next(each for each in run_folder("", "").parents if each.is_dir())
    try:
        check_room(folder)
    except RunError as error:
        return str(error)
    return None


def _addresses() -> dict[str, list[str]]:
    import psutil

    found: dict[str, list[str]] = {}
    for name, entries in psutil.net_if_addrs().items():
        for entry in entries:
            if entry.family in (socket.AF_INET, socket.AF_INET6) and entry.netmask:
                found.setdefault(name, []).append(_with_prefix(entry.address, entry.netmask))
    return found


def _with_prefix(address: str, mask: str) -> str:
    plain = address.partition("%")[0]
    bits = int(ipaddress.ip_address(mask)).bit_count()
    return f"{plain}/{bits}"
