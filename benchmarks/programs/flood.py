"""Strangers without number: keeps connections to an address open, and opens new ones, each with a call.

flood.py ADDRESS OPEN RATE      OPEN connections; RATE new ones a second, each with a call that never ends, and
                                the others silent
flood.py ADDRESS OPEN RATE silent
                                RATE new connections a second, of which the newest OPEN stay open; one half says
                                nothing, the other one HTTP/2's preface and nothing more; at the end says how
                                many there were, on stderr
flood.py sink                   listens at a port of its own, prints it, reads what comes and answers nothing
"""

import collections
import os
import selectors
import socket
import struct
import sys
import threading
import time

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\x04\0\0\0\0\0"

SINK_OPEN = 10_000
MADE = [0]


def call(path: bytes) -> bytes:
    """Return the frame of HTTP/2 that begins a call of gRPC's, and does not end it."""
    fields = (
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", path),
        (b":authority", b"stranger"),
        (b"content-type", b"application/grpc"),
        (b"te", b"trailers"),
    )
    block = b"".join(
        b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value for name, value in fields
    )
    return len(block).to_bytes(3, "big") + b"\x01\x04\0\0\0\x01" + block


def connected(place: tuple[str, int], said: bytes) -> socket.socket:
    """Open a connection that says something and is not read."""
    connection = socket.create_connection(place, 5)
    connection.sendall(said)
    return connection


def silent(place: tuple[str, int], number: int, rate: float) -> None:
    """Go on until the process is ended; a connection is closed without a trace, so that no port is held."""
    opened: collections.deque[socket.socket] = collections.deque()
    begun_s, made = time.monotonic(), 0
    while True:
        connection = socket.socket()
        connection.settimeout(5)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        opened.append(connection)
        try:
            connection.connect(place)
            connection.sendall(PREFACE if made % 2 else b"")
        except OSError:
            time.sleep(0.001)  # the server has closed it, or no port was free
        made += 1
        MADE[0] = made
        if made == 1:
            print("ready", flush=True)
        if len(opened) > number:
            opened.popleft().close()
        time.sleep(max(0.0, begun_s + made / rate - time.monotonic()))


def flood(place: tuple[str, int], number: int, rate: float) -> None:
    """Go on until the process is ended."""
    quiet: collections.deque[socket.socket] = collections.deque()
    calling: collections.deque[socket.socket] = collections.deque()
    begun_s, made = time.monotonic(), 0
    while True:
        try:
            while len(quiet) + len(calling) < number:
                quiet.append(connected(place, PREFACE))
            calling.append(connected(place, PREFACE + call(b"/dtrain.Task/Meet")))
        except OSError:
            time.sleep(0.01)
            continue
        made += 1
        if made == 1:
            print("ready", flush=True)
            begun_s = time.monotonic()
        if len(calling) > min(rate, number // 2):
            calling.popleft().close()
        quiet.rotate()
        quiet[0].setblocking(False)
        try:
            while quiet[0].recv(4096):
                pass
            quiet.popleft().close()  # the server has closed it: another one comes
        except BlockingIOError:
            pass
        except OSError:
            quiet.popleft().close()
        time.sleep(max(0.0, begun_s + made / rate - time.monotonic()))


def ended(connection: socket.socket) -> bool:
    """Read what has come; whether the other end has closed it."""
    try:
        return not connection.recv(4096)
    except OSError:
        return True


def sink() -> None:
    """Take everything, in one thread; of more connections than it may have open the oldest are closed."""
    opened: collections.deque[socket.socket] = collections.deque()
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    print(f"127.0.0.1:{listener.getsockname()[1]}", flush=True)
    selector = selectors.DefaultSelector()
    selector.register(listener, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.fileobj is listener:
                connection, _ = listener.accept()
                selector.register(connection, selectors.EVENT_READ)
                opened.append(connection)
                if len(opened) > SINK_OPEN and (oldest := opened.popleft()).fileno() >= 0:
                    selector.unregister(oldest)
                    oldest.close()
            elif isinstance(key.fileobj, socket.socket) and key.fileobj.fileno() >= 0 and ended(key.fileobj):
                selector.unregister(key.fileobj)
                key.fileobj.close()


def until_the_end_of_input() -> None:
    """End the process once nobody waits for it."""
    sys.stdin.read()
    print(MADE[0], "connections", file=sys.stderr, flush=True)
    os._exit(0)


if __name__ == "__main__":
    threading.Thread(target=until_the_end_of_input, daemon=True).start()
    os.nice(19)
    if sys.argv[1] == "sink":
        sink()
    host, _, port = sys.argv[1].rpartition(":")
    (silent if "silent" in sys.argv else flood)((host, int(port)), int(sys.argv[2]), float(sys.argv[3]))
