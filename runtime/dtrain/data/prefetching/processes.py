"""Helper processes for functions that keep the interpreter busy: forks of this process, which has them.

A helper gets an element and sends back the result. The kernel kills it when this process dies in any way: it
is forked by a thread that lives as long as the helpers, and dies with it.
"""

import contextlib
import os
import queue
import signal
import socket
import stat
import struct
import threading
import traceback
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dtrain.data.structure import Element, decode_element, encode_element
from dtrain.errors import InputError
from dtrain.process.life_line import die_with_parent

Compute = Callable[[Any], Element]
Idle = queue.SimpleQueue[tuple[socket.socket, int] | None]
"""Helpers without a request, each with its pid; None: one that has died, or was never forked."""
_LENGTH = struct.Struct("<Q")
SILENT_S = 300.0
"""The longest time for one element: that of a stall (`--stall-timeout`), unless another is given."""
SILENT = "map: helper process {} has computed one element for {:g} s; does it wait for a lock of a thread?"
LOST = "map: a helper process was killed while it computed an element; is there enough memory?"


_is_helper = False
"""Whether this process is a helper itself: it computes what would be sent to others."""


class Helpers:
    """Helper processes, forked when the first element is asked for; several threads may use them at once."""

    def __init__(self, compute: Compute, count: int) -> None:
        self._compute = compute
        self._count = count
        self._idle: Idle = queue.SimpleQueue()
        self._starting = threading.Lock()
        self._end: threading.Event | None = None

    def __call__(self, request: Any) -> Element:
        """Return `compute` of a request; an `InputError` tells the helper's traceback, or its end."""
        if _is_helper:
            return self._compute(request)
        data = encode_element(request)
        self._start()
        if (helper := self._idle.get()) is None:
            self._idle.put(None)
            raise InputError(LOST)
        channel, pid = helper
        try:
            _send(channel, data)
            answer = _receive(channel)
        except (OSError, EOFError) as error:
            channel.close()
            self._idle.put(None)  # else the next caller would wait for a helper that has died
            silent = isinstance(error, TimeoutError)
            raise InputError(SILENT.format(pid, SILENT_S) if silent else LOST) from None
        self._idle.put(helper)
        element, failure = decode_element(answer)
        if failure:
            raise InputError(f"map, in a helper process: {failure.splitlines()[-1]}\n{failure}")
        return element

    def close(self) -> None:
        if self._end is not None:
            self._end.set()

    def _start(self) -> None:
        with self._starting:
            if self._end is not None:
                return
            end, started = threading.Event(), threading.Event()
            keeper = threading.Thread(
                target=_run_helpers, args=(self._compute, self._count, self._idle, started, end), daemon=True
            )
            keeper.name = "dtrain-map-helpers"
            keeper.start()
            if not started.wait(SILENT_S):
                raise InputError(f"map: its {self._count} helper processes were not forked in {SILENT_S:g} s")
            self._end = end
            weakref.finalize(self, _finish, end, keeper)


def _finish(end: threading.Event, keeper: threading.Thread) -> None:
    end.set()
    if keeper is not threading.current_thread():
        keeper.join(10.0)


def _run_helpers(
    compute: Compute, count: int, idle: Idle, started: threading.Event, end: threading.Event
) -> None:
    """Fork the helpers, and kill and reap them at the end. They die with this thread."""
    pids = []
    try:
        for _ in range(count):
            own, its = socket.socketpair()
            parent = os.getpid()
            with warnings.catch_warnings():
                warnings.simplefilter(
                    "ignore", DeprecationWarning
                )  # of forks beside threads: it only computes
                pid = os.fork()
            if pid == 0:
                _help(compute, its, parent)
            its.close()
            own.settimeout(SILENT_S)
            idle.put((own, pid))
            pids.append(pid)
    finally:
        for _ in range(count - len(pids)):
            idle.put(None)
        started.set()
        end.wait()
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in pids:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)


def _help(compute: Compute, channel: socket.socket, parent: int) -> None:
    """Answer requests until the other end is closed; the process ends here.

    An answer is a pair of an element and the traceback of an error, which is empty where there is none.
    """
    global _is_helper
    code = 1
    try:
        die_with_parent(parent)
        for each in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(each, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the task, which then ends its helpers
        _is_helper = True
        # What connects the forking process to others is closed: they are to notice when it dies.
        for number in [int(path.name) for path in Path("/proc/self/fd").iterdir()]:
            with contextlib.suppress(OSError):
                if number > 2 and number != channel.fileno() and stat.S_ISSOCK(os.fstat(number).st_mode):
                    os.close(number)
        while True:
            request = _receive(channel)
            try:
                answer = encode_element((compute(decode_element(request)), ""))
            except Exception:
                answer = encode_element((None, traceback.format_exc().rstrip()))
            _send(channel, answer)
    except (EOFError, OSError):
        code = 0
    finally:
        os._exit(code)


def _send(channel: socket.socket, data: bytes) -> None:
    channel.sendall(_LENGTH.pack(len(data)) + data)


def _receive(channel: socket.socket) -> bytes:
    return _exactly(channel, *_LENGTH.unpack(_exactly(channel, _LENGTH.size)))


def _exactly(channel: socket.socket, length: int) -> bytes:
    parts = []
    while length:
        part = channel.recv(min(length, 1 << 20))
        if not part:
            raise EOFError
        parts.append(part)
        length -= len(part)
    return b"".join(parts)
