"""The connections to a listener that have not proven yet that they belong to the run.

One thread hears them all. Each has a few seconds, only so many wait at a time, and for one more the oldest
has to go: a process that opens connections and says nothing keeps no task out.
"""

import contextlib
import select
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

_RETRY_S = 0.05


@dataclass
class Guest:
    """One that has not proven itself.

    Attributes:
        until_s: when it has to go.
        challenged: whether it has been answered once, so that its proof comes next.
    """

    connection: socket.socket
    until_s: float
    challenged: bool = False


Kind = TypeVar("Kind", bound=Guest)


class WaitingRoom(ABC, Generic[Kind]):
    """Hears the connections to a listener, from its own thread, until `stop`; what they say is a lobby's."""

    def __init__(self, listener: socket.socket, thread: str) -> None:
        """Begin.

        Args:
            listener: listens; who shuts it down ends the thread.
            thread: its name.
        """
        self._listener = listener
        self._guests: OrderedDict[int, Kind] = OrderedDict()
        self._ready = select.epoll()
        self._stopped = threading.Event()
        listener.setblocking(False)
        self._ready.register(listener, select.EPOLLIN)
        self._thread = threading.Thread(target=self._run, name=thread, daemon=True)
        self._thread.start()

    @property
    @abstractmethod
    def places(self) -> int:
        """How many may wait at a time."""

    @abstractmethod
    def _receive(self, connection: socket.socket, place: Any) -> Kind | None:
        """Return what is known of a new connection, which does not block; None: it has to go at once."""

    @abstractmethod
    def _hear(self, guest: Kind) -> None:
        """Take what has come of a guest, who stays, is let in, or has to go."""

    def stop(self, limit_s: float) -> None:
        """Close the connections that have not been let in."""
        self._stopped.set()
        with contextlib.suppress(OSError):  # it has been stopped before
            self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join(limit_s)

    def _run(self) -> None:
        while not self._stopped.is_set():
            first = next(iter(self._guests.values()), None)
            wait_s = None if first is None else max(0.0, first.until_s - time.monotonic())
            for descriptor, _ in self._ready.poll(wait_s):
                if descriptor == self._listener.fileno():
                    self._accept()
                elif (guest := self._guests.get(descriptor)) is not None:
                    self._hear(guest)
            now_s = time.monotonic()
            while self._guests and next(iter(self._guests.values())).until_s <= now_s:
                self._drop_oldest()
        while self._guests:
            self._drop_oldest()
        self._ready.close()

    def _accept(self) -> None:
        try:
            connection, place = self._listener.accept()
        except OSError:
            self._stopped.wait(_RETRY_S)  # one that has gone again, or no descriptor left for it
            return
        connection.setblocking(False)
        guest = self._receive(connection, place)
        if guest is None:
            connection.close()
            return
        if len(self._guests) >= self.places:
            self._drop_oldest()
        self._guests[guest.connection.fileno()] = guest
        self._ready.register(guest.connection, select.EPOLLIN)

    def _drop_oldest(self) -> None:
        self._drop(next(iter(self._guests.values())))

    def _drop(self, guest: Kind) -> None:
        self._forget(guest)
        guest.connection.close()

    def _forget(self, guest: Kind) -> None:
        self._ready.unregister(guest.connection)
        self._guests.pop(guest.connection.fileno())
