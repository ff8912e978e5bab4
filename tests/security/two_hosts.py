"""Two hosts on this machine: network namespaces with a cable between them, which end with the test."""

import ctypes
import socket
import struct
import subprocess
import threading
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

import pytest

ADDRESSES = {"machine-a": "10.77.0.1", "machine-b": "10.77.0.2"}
CLONE_NEWNET = 0x40000000
ETH_P_ALL = 3
SO_RCVBUFFORCE = 33
SOL_PACKET, PACKET_STATISTICS = 263, 6
HOST = 'mount --bind "$1" /etc/hosts && hostname "$2" && ip link set lo up && echo ready && read -r end'


class Hosts:
    """machine-a and machine-b: each a process that holds its namespaces and ends when this one does.

    Attributes:
        folders: what stands for the home of the user there.
    """

    def __init__(self, folder: Path) -> None:
        self._names = {name: folder / f"hosts of {name}" for name in ADDRESSES}
        self.folders = {name: folder / name for name in ADDRESSES}
        self._holders: dict[str, subprocess.Popen[str]] = {}
        for name in ADDRESSES:
            self.folders[name].mkdir()
            self._name_hosts(name, ADDRESSES)
            words = [
                "unshare",
                "--net",
                "--mount",
                "--uts",
                "sh",
                "-c",
                HOST,
                "sh",
                str(self._names[name]),
                name,
            ]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
            self._holders[name] = subprocess.Popen(words, text=True, **pipes)
        if any(holder.stdout.readline() != "ready\n" for holder in self._holders.values()):
            self._skip(" ".join(holder.communicate()[1] for holder in self._holders.values()))
        self._connect()

    def name_hosts_as_debian(self) -> None:
        """Let each host's own name mean 127.0.1.1 there, as Debian's installer does."""
        for name in ADDRESSES:
            self._name_hosts(name, {**ADDRESSES, name: "127.0.1.1"})

    def _name_hosts(self, on: str, addresses: Mapping[str, str]) -> None:
        lines = "".join(f"{ip} {name}\n" for name, ip in addresses.items())
        self._names[on].write_text(f"{lines}127.0.0.1 localhost\n")  # the file that is mounted there

    def pid(self, name: str) -> int:
        """Return the process that holds the namespaces of a host."""
        return self._holders[name].pid

    def on(self, name: str) -> tuple[str, ...]:
        """Return the words that run a command on a host, in its folder."""
        inside = ("nsenter", f"--target={self.pid(name)}", "--net", "--mount", "--uts")
        return (*inside, "env", f"--chdir={self.folders[name]}")

    def listen(self, name: str) -> socket.socket:
        """Return a packet socket that sees all that passes the cable at a host."""
        opened = []

        def enter() -> None:
            with open(f"/proc/{self._holders[name].pid}/ns/net") as there:
                if ctypes.CDLL(None, use_errno=True).setns(there.fileno(), CLONE_NEWNET):
                    raise OSError(ctypes.get_errno(), "setns")
            opened.append(socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL)))

        thread = threading.Thread(target=enter)  # a namespace is a thread's: this one stays where it is
        thread.start()
        thread.join()
        opened[0].setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 64 << 20)
        opened[0].bind(("cable", 0))
        return opened[0]

    def namespaces(self) -> set[str]:
        """Return the identities of the two network namespaces."""
        return {str(Path(f"/proc/{holder.pid}/ns/net").readlink()) for holder in self._holders.values()}

    def close(self) -> None:
        """End the holders: the kernel removes namespaces and cable with the last process in them."""
        for holder in self._holders.values():
            if holder.returncode is None:
                holder.communicate()

    def _skip(self, reason: str) -> NoReturn:
        self.close()
        pytest.skip(f"this machine lets no test have network namespaces: {reason.strip()}")

    def _connect(self) -> None:
        """Lay a cable, with an end named so on each host."""
        here, there = (str(holder.pid) for holder in self._holders.values())
        cable = ["ip", "link", "add", "cable", "netns", here, "type", "veth"]
        laid = subprocess.run(
            [*cable, "peer", "name", "cable", "netns", there], capture_output=True, text=True, check=False
        )
        if laid.returncode:
            self._skip(laid.stderr)
        for name, ip in ADDRESSES.items():
            subprocess.run([*self.on(name), "ip", "address", "add", f"{ip}/24", "dev", "cable"], check=True)
            subprocess.run([*self.on(name), "ip", "link", "set", "cable", "up"], check=True)


class Sniffer:
    """Keeps the payload of every TCP stream that passes one end of the cable, in its order."""

    def __init__(self, packets: socket.socket) -> None:
        self._packets = packets
        self._streams: dict[bytes, dict[int, bytes]] = defaultdict(dict)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def stop(self) -> bytes:
        """Return all that was heard, stream after stream; no packet was lost."""
        self._ended.set()
        self._thread.join()
        lost = struct.unpack("II", self._packets.getsockopt(SOL_PACKET, PACKET_STATISTICS, 8))[1]
        self._packets.close()
        assert lost == 0
        return b"\n".join(b"".join(stream[at] for at in sorted(stream)) for stream in self._streams.values())

    def _listen(self) -> None:
        self._packets.settimeout(0.1)
        while True:
            try:
                packet = self._packets.recv(1 << 17)[14:]
            except OSError:  # nothing came, or the host is gone
                if self._ended.is_set():
                    return
                continue
            if packet[0] >> 4 == 4 and packet[9] == socket.IPPROTO_TCP:
                segment = packet[4 * (packet[0] & 15) : int.from_bytes(packet[2:4], "big")]
                ends, sequence = packet[12:20] + segment[:4], int.from_bytes(segment[4:8], "big")
                if payload := segment[4 * (segment[12] >> 4) :]:
                    self._streams[ends][sequence] = payload
