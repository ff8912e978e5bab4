"""Several hosts on this machine: namespaces of network, processes, mounts, host name and clock, with a real sshd
each, joined by a switch whose cables can be cut.

h0 is where a user works; h1 and so on are the other hosts. Every namespace is held by a process that dies with
the test's process, so that nothing is left of a rig, however a test ends. The hosts share this machine's disk, but each
has a ``/run`` of its own, and state and caches of dtrain there.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

import pytest
from launching import SOURCES, wait_until

SSHD = "/usr/sbin/sshd"
PROGRAMS = ("ip", "nsenter", "setpriv", "ssh", "ssh-keygen", "unshare")
CLOCK_STEP_S = 100_000
"""Each host has been up so many seconds longer than the one before."""
_SSHD_PORT = ":0016"
_LISTENS = "0A"
_FOLDER = "/run/dtrain-host"


def missing() -> str | None:
    """Why there can be no rig here; None if there can be one."""
    if os.geteuid() != 0:
        return "hosts in namespaces need root"
    programs = [name for name in PROGRAMS if shutil.which(name) is None]
    if not Path(SSHD).exists():
        programs.append("sshd")
    if programs:
        return f"{', '.join(programs)} not installed (openssh-server, iproute2, util-linux)"
    tried = subprocess.run(
        ["unshare", *_NAMESPACES, "--", "ip", "link", "add", "br0", "type", "bridge"],
        capture_output=True,
        text=True,
        check=False,
    )
    return f"no namespaces here: {tried.stderr.strip()[:200]}" if tried.returncode else None


_NAMESPACES = (
    *("--net", "--mount", "--uts", "--ipc", "--pid", "--time"),
    *("--fork", "--kill-child", "--mount-proc"),
)
needs_hosts = pytest.mark.skipif(reason is not None, reason=str(reason)) if (reason := missing()) else []
"""Marks a module whose tests run on a rig: ``pytestmark = needs_hosts``."""


@dataclass(frozen=True)
class Ways:
    """How the hosts of a rig are.

    Attributes:
        max_startups: of sshd: how many logins may begin at once.
        debian: whether a host's own name means 127.0.1.1 there, as Debian's installer writes it.
        banner: what a login shell prints before it runs a command.
        disk_bytes: the size of each host's disk for state and caches; None: as much as there is.
        environment: more variables of logins, such as LD_PRELOAD of a library that changes their clock.
    """

    max_startups: str = "200"
    debian: bool = False
    banner: str = ""
    disk_bytes: int | None = None
    environment: dict[str, str] = field(default_factory=dict)


class Rig:
    """Hosts h1 to h`count`, and h0, from which they are reached. A context manager.

    Attributes:
        folder: for keys and logs; given by the test, which removes it.
    """

    def __init__(self, folder: Path, count: int = 4, ways: Ways | None = None) -> None:
        self.names = [f"h{number}" for number in range(1, count + 1)]
        self.folder = folder
        self._ways = ways or Ways()
        self._holders: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> "Rig":
        try:
            self._write_keys()
            self._hold("switch", ["unshare", "--net", "--", "sleep", "infinity"])
            for name in ("h0", *self.names):
                self._boot(name)
            self._wire(("h0", *self.names))
            for name in self.names:
                self._await_sshd(name)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End every host with all that it runs, and the network."""
        for holder in self._holders.values():
            holder.kill()
        for holder in self._holders.values():
            holder.wait()
        self._holders.clear()

    def address(self, name: str) -> str:
        """A host's address on the rig's network."""
        return f"10.77.0.{10 + int(name[1:])}"

    def wrapper(self, name: str = "h0") -> tuple[str, ...]:
        """What runs a command on a host, without ssh; the working directory stays."""
        pid = self._holders[name].pid
        spaces = ["net", "mount", "uts", "ipc"]
        enter = [f"--{space}=/proc/{pid}/ns/{'mnt' if space == 'mount' else space}" for space in spaces]
        if name != "h0":  # h0 is this machine's user: its processes are seen from here by their own pids
            enter += [f"--{space}=/proc/{pid}/ns/{space}_for_children" for space in ("pid", "time")]
        return ("nsenter", *enter, "--", "sh", "-c", 'cd "$0" && exec "$@"', str(Path.cwd()))

    def run(self, name: str, *words: str, check: bool = True) -> "subprocess.CompletedProcess[str]":
        """Run a command on a host, without ssh, to its end."""
        return subprocess.run(
            [*self.wrapper(name), *words],
            capture_output=True,
            text=True,
            check=check,
            timeout=60,
            stdin=subprocess.DEVNULL,
        )

    def path(self, name: str, path: str) -> Path:
        """A path of a host as this process reaches it, also below that host's own ``/run``."""
        return Path(f"/proc/{self._holders[name].pid}/root{path}")

    def state(self, name: str) -> Path:
        """The folder for state and caches of dtrain on a host, which no other host sees."""
        return self.path(name, f"{_FOLDER}/disk")

    def cut(self, name: str) -> None:
        """Pull the cable of a host."""
        self._switch(f"link set p{name} down")

    def restore(self, name: str) -> None:
        """Put the cable of a host back."""
        self._switch(f"link set p{name} up")

    def kill(self, name: str) -> None:
        """End a host with all that it runs, at once."""
        holder = self._holders.pop(name)
        holder.kill()
        holder.wait()
        with contextlib.suppress(subprocess.CalledProcessError):  # the kernel was faster
            self._switch(f"link del p{name}")

    def revive(self, name: str) -> None:
        """Start a killed host again, with an empty disk."""
        self._boot(name)
        self._wire([name])
        self._await_sshd(name)

    def processes(self, name: str) -> dict[int, str]:
        """The processes of a host besides its sshd: pid here, and command line. Ended ones do not count."""
        space = _space(self._holders[name].pid, "pid_for_children")
        return {pid: line for pid, line in _command_lines(space) if "sshd" not in line.split(" ")[0]}

    def _write_keys(self) -> None:
        for name in ("id", "hostkey"):
            made = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.folder / name)]
            subprocess.run(made, check=True)
        key = " ".join((self.folder / "hostkey.pub").read_text().split()[:2])
        known = "".join(f"{name},{self.address(name)} {key}\n" for name in self.names)
        (self.folder / "known_hosts").write_text(known)
        everyone = "".join(f"{self.address(name)} {name}\n" for name in ("h0", *self.names))
        (self.folder / "hosts").write_text(f"127.0.0.1 localhost\n{everyone}")
        (self.folder / "ssh_config").write_text(
            f"Host h*\n User root\n IdentityFile {self.folder}/id\n IdentitiesOnly yes\n"
            f" UserKnownHostsFile {self.folder}/known_hosts\n StrictHostKeyChecking yes\n LogLevel ERROR\n"
        )
        (self.folder / "banner").write_text(
            f"echo {json.dumps(self._ways.banner)}\n" if self._ways.banner else ""
        )

    def _hold(self, name: str, words: Sequence[str]) -> None:
        """Start the process whose namespaces are a host or the switch; it dies with this process."""
        own = _space("self", "net")
        holder = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=(self.folder / f"{name}.err").open("wb"),
        )
        self._holders[name] = holder

        def entered() -> bool:
            assert holder.poll() is None, (self.folder / f"{name}.err").read_text()
            return _space(holder.pid, "net") != own

        wait_until(entered, f"the namespaces of {name}")

    def _boot(self, name: str) -> None:
        number = int(name[1:])
        hosts = self.folder / f"{name}.hosts"
        lines = (self.folder / "hosts").read_text().splitlines(keepends=True)
        if self._ways.debian:
            own = f"127.0.1.1 {name}\n"
            lines = [own if line.endswith(f" {name}\n") else line for line in lines]
        hosts.write_text("".join(lines))
        size = f"-o size={self._ways.disk_bytes}" if self._ways.disk_bytes else ""
        script = [
            "set -e",
            f"hostname {name}",
            f"mount --bind {hosts} /etc/hosts",
            f"mount --bind {self.folder}/ssh_config /etc/ssh/ssh_config",
            "mount -t tmpfs none /run",
            f"mkdir -p /run/sshd {_FOLDER}/disk",
            f"mount -t tmpfs {size} none {_FOLDER}/disk",
            "touch /run/booted",
        ]
        if name == "h0":
            script.append("exec sleep infinity")
            spaces = ["--net", "--mount", "--uts", "--ipc"]
        else:
            (self.folder / f"{name}.sshd").write_text(self._sshd_config())
            # The shell reaps what processes leave behind, as a host's process 1 has to.
            script.append(f"{SSHD} -D -f {self.folder}/{name}.sshd -E {self.folder}/{name}.log & wait")
            uptime = str(number * CLOCK_STEP_S)
            spaces = [*_NAMESPACES, "--boottime", uptime, "--monotonic", uptime]
        self._hold(name, ["unshare", *spaces, "--", "sh", "-c", "\n".join(script)])

    def _sshd_config(self) -> str:
        disk = f"{_FOLDER}/disk"
        path = os.pathsep.join([str(Path(sys.executable).parent), "/usr/bin:/bin:/usr/sbin:/sbin"])
        variables = {
            "PATH": path,
            "XDG_STATE_HOME": f"{disk}/state",
            "XDG_CACHE_HOME": f"{disk}/cache",
            **({"PYTHONPATH": SOURCES} if SOURCES else {}),
            **({"BASH_ENV": f"{self.folder}/banner"} if self._ways.banner else {}),
            **{name: os.environ[name] for name in ("PYTHONPYCACHEPREFIX",) if name in os.environ},
            **self._ways.environment,
        }
        lines = {
            "Port": "22",
            "ListenAddress": "0.0.0.0",
            "HostKey": f"{self.folder}/hostkey",
            "PidFile": "none",
            "AuthorizedKeysFile": f"{self.folder}/id.pub",
            "PasswordAuthentication": "no",
            "UsePAM": "no",
            "UseDNS": "no",
            "StrictModes": "no",
            "PermitRootLogin": "yes",
            "MaxStartups": self._ways.max_startups,
            "SetEnv": " ".join(f'"{name}={value}"' for name, value in variables.items()),
        }
        return "".join(f"{name} {value}\n" for name, value in lines.items())

    def _wire(self, names: Sequence[str]) -> None:
        if len(names) > 1:
            self._switch("link add br0 type bridge", "link set br0 up")
        cables = []
        for name in names:
            pid = self._holders[name].pid
            cables += [
                f"link add p{name} type veth peer name eth0 netns {pid}",
                f"link set p{name} master br0",
                f"link set p{name} up",
            ]
        self._switch(*cables)
        for name in names:
            card = f"02:00:00:00:00:{int(name[1:]):02x}"  # a host that was started again has the same
            up = [
                f"link set eth0 address {card}",
                f"addr add {self.address(name)}/24 dev eth0",
                *("link set eth0 up", "link set lo up"),
            ]
            _in_network(self._holders[name].pid, up)
            wait_until(self.path(name, "/run/booted").exists, f"{name} to boot")

    def _switch(self, *commands: str) -> None:
        _in_network(self._holders["switch"].pid, commands)

    def _await_sshd(self, name: str) -> None:
        sockets = Path(f"/proc/{self._holders[name].pid}/net/tcp")

        def listens() -> bool:
            rows = [line.split() for line in sockets.read_text().splitlines()[1:]]
            return any(row[1].endswith(_SSHD_PORT) and row[3] == _LISTENS for row in rows)

        wait_until(listens, f"sshd of {name}")


def _space(pid: int | str, kind: str) -> str:
    """Return the name of a process's namespace."""
    return str(Path(f"/proc/{pid}/ns/{kind}").readlink())


def _in_network(pid: int, commands: Sequence[str]) -> None:
    subprocess.run(
        ["nsenter", f"--net=/proc/{pid}/ns/net", "--", "ip", "-batch", "-"],
        input="".join(f"{command}\n" for command in commands),
        text=True,
        check=True,
        capture_output=True,
    )


def _command_lines(space: str) -> Iterator[tuple[int, str]]:
    """Yield pid and command line of what runs in a namespace of processes, its process 1 left out."""
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal():
            continue
        try:
            if _space(folder.name, "pid") != space:
                continue
            line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            status = (folder / "status").read_text()
        except OSError:  # it has ended
            continue
        inner = next(row.split()[-1] for row in status.splitlines() if row.startswith("NSpid:"))
        if inner != "1" and line:
            yield int(folder.name), line


def kill(pid: int) -> None:
    """Kill one process of a host by its pid here."""
    os.kill(pid, signal.SIGKILL)
