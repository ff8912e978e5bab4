"""Some hosts on this machine: network namespaces with cables to one switch, which end with the test."""

import subprocess

import pytest

SWITCH = "switch"
HOLD = "ip link set lo up && echo ready && read -r end"


class SwitchedHosts:
    """Hosts 10.78.0.1 and on; each is a process that holds a namespace and ends when this one does."""

    def __init__(self, count: int) -> None:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        words = ["unshare", "--net", "sh", "-c", HOLD]
        self._holders = [subprocess.Popen(words, text=True, **pipes) for _ in range(count + 1)]
        if any(holder.stdout.readline() != "ready\n" for holder in self._holders):
            reason = " ".join(holder.communicate()[1] for holder in self._holders)
            pytest.skip(f"this machine lets no test have network namespaces: {reason.strip()}")
        *_, self._switch = (str(holder.pid) for holder in self._holders)
        self._run(self._switch, "link", "add", SWITCH, "type", "bridge")
        self._run(self._switch, "link", "set", SWITCH, "up")
        for number, holder in enumerate(self._holders[:-1]):
            ends = ["peer", "name", f"port{number}", "netns", self._switch]
            self._run(str(holder.pid), "link", "add", "cable", "type", "veth", *ends)
            self._run(self._switch, "link", "set", f"port{number}", "master", SWITCH)
            self._run(self._switch, "link", "set", f"port{number}", "up")
            self._run(str(holder.pid), "address", "add", f"{self.ip(number)}/24", "dev", "cable")
            self._run(str(holder.pid), "link", "set", "cable", "up")

    @staticmethod
    def ip(number: int) -> str:
        """Return a host's address."""
        return f"10.78.0.{number + 1}"

    def on(self, number: int) -> list[str]:
        """Return the words that run a command on a host."""
        return ["nsenter", f"--target={self._holders[number].pid}", "--net"]

    def network(self, number: int) -> int:
        """Return a process in a host's network namespace."""
        return self._holders[number].pid

    def unplug(self, number: int) -> None:
        """Cut a host's cable: nothing tells either end."""
        self._run(self._switch, "link", "set", f"port{number}", "nomaster")

    def plug(self, number: int) -> None:
        """Mend a host's cable again."""
        self._run(self._switch, "link", "set", f"port{number}", "master", SWITCH)

    def mute(self, number: int, other: int) -> None:
        """Let nothing that a host sends arrive at another one: it has a link address that nobody has."""
        nobody = ["lladdr", "02:00:00:00:00:01", "dev", "cable", "nud", "permanent"]
        self._run(str(self._holders[number].pid), "neighbour", "replace", self.ip(other), *nobody)

    def unmute(self, number: int, other: int) -> None:
        """Let what a host sends arrive again."""
        self._run(str(self._holders[number].pid), "neighbour", "delete", self.ip(other), "dev", "cable")

    def close(self) -> None:
        """End the holders: the kernel removes namespaces and cables with the last process in them."""
        for holder in self._holders:
            holder.communicate()

    @staticmethod
    def _run(pid: str, *words: str) -> None:
        done = subprocess.run(
            ["nsenter", f"--target={pid}", "--net", "ip", *words], capture_output=True, text=True, check=False
        )
        if done.returncode:
            pytest.skip(f"this machine lets no test have network namespaces: {done.stderr.strip()}")
