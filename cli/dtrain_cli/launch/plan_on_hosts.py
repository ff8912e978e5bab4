"""`dtrain plan --on ssh`: each host's login and tasks. Nothing is asked of the hosts."""

import json
import shlex
import sys

from dtrain_cli.launch.options import LaunchOptions
from dtrain_cli.launch.request import read_request
from dtrain_cli.placement.placing import hosts_of, place
from dtrain_cli.targets.ssh import Ssh


def plan(options: LaunchOptions) -> int:
    """Print, for each host, the command that logs in to it, and its tasks.

    Raises:
        SpecError: the spec is wrong, or the tasks have no room on the hosts.
    """
    workload, spec = read_request(options)
    spec = workload.named(spec)
    hosts = hosts_of(spec)
    ssh = Ssh(spec.python or sys.executable, options.foreign)
    placed = place(spec.cluster, hosts, spec.place)
    tasks = {
        host.host: [str(task) for task in sorted(placed) if placed[task].host == host.host] for host in hosts
    }
    logins = {host.host: ssh.command(host.host) for host in hosts}
    if options.json:
        listed = [
            {"host": name, "address": host.address, "login": logins[name], "tasks": tasks[name]}
            for host in hosts
            for name in (host.host,)
        ]
        print(json.dumps({"name": spec.name, "on": spec.on, "hosts": listed}, indent=2))  # noqa: T201
        return 0
    print(f"{spec.name}: {spec.cluster}")  # noqa: T201
    print("each host's address and ports are found when it is logged in to")  # noqa: T201
    for host in hosts:
        at = f" ({host.address})" if host.address else ""
        spare = "spare: it takes over the tasks of a host that is lost"
        does = spare if host.spare else ", ".join(tasks[host.host]) or "no task"
        print(f"\n{host}{at}  {does}\n  {shlex.join(logins[host.host])}")  # noqa: T201
    return 0
