"""A DNS server that says NXDOMAIN until a name is known, as a cluster's does for pods that are not there yet."""

import ctypes
import os
import socket
import struct
import threading

CLONE_NEWNET = 0x40000000
_A, _IN, _TTL_S = 1, 1, 1
_NXDOMAIN = 3


class LateNames:
    """Answers on port 53 of an address of a network namespace, whose socket it keeps."""

    def __init__(self, namespace: str, address: str) -> None:
        self.addresses: dict[str, str] = {}
        self.refused: set[str] = set()
        self._closed = False
        self._socket = _socket_in(namespace, address)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closed = True
        self._socket.close()

    def _serve(self) -> None:
        while True:
            try:
                question, asker = self._socket.recvfrom(512)
                self._socket.sendto(self.answer(question), asker)
            except OSError:  # a pod that has asked is gone, which the kernel says here; or all is over
                if self._closed:
                    return

    def answer(self, question: bytes) -> bytes:
        labels, at = [], 12
        while length := question[at]:
            labels.append(question[at + 1 : at + 1 + length].decode())
            at += 1 + length
        kind = struct.unpack("!H", question[at + 1 : at + 3])[0]
        name = ".".join(labels).lower().removesuffix(".default.svc.cluster.local")
        address = self.addresses.get(name)
        if address is None:
            self.refused.add(name)
        found = address is not None and kind == _A
        header = question[:2] + struct.pack(
            "!HHHHH", 0x8580 | (0 if address else _NXDOMAIN), 1, int(found), 0, 0
        )
        record = (
            b"\xc0\x0c" + struct.pack("!HHIH", _A, _IN, _TTL_S, 4) + socket.inet_aton(address or "0.0.0.0")
        )
        return header + question[12 : at + 5] + (record if found else b"")


def _socket_in(namespace: str, address: str) -> socket.socket:
    """A socket stays in the namespace in which its thread has made it."""
    made: list[socket.socket] = []

    def make() -> None:
        handle = os.open(f"/run/netns/{namespace}", os.O_RDONLY)
        if ctypes.CDLL(None, use_errno=True).setns(handle, CLONE_NEWNET):
            return
        os.close(handle)
        server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        server.bind((address, 53))
        made.append(server)

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    return made[0]
