"""The streams of one task for one lane: opened when a way is first used, and kept from step to step.

A lane is a slice of the variables with its own streams; on each host one task carries it out. Streams belong
to one attempt of one membership, as their names say: after a failure all are closed and others opened, so
that no byte of a sum that was given up is ever taken for one of the next.
"""

import time
from collections.abc import Callable, Collection, Mapping

from dtrain.collectives.between_hosts.all_reduce import Way
from dtrain.wire.streams import Incoming, Outgoing

Open = Callable[[str, str, float], Outgoing]
"""Opens a stream to a task under a name, within so many seconds."""
Take = Callable[[str | Collection[str], str, float, Callable[[], str | None]], Incoming]
"""Waits for a stream of a task, or of any of several, under a name until a deadline, or until it is given up:
see `Listener`.
"""


class Ways:
    """The streams of one lane. Several threads may use it, but one way only one of them.

    Attributes:
        blamed: the host on the other end of the way that failed first; -1: none has.
    """

    def __init__(self, tasks: Mapping[int, str], name: str, open_: Open, take: Take) -> None:
        """Open nothing yet.

        Args:
            tasks: by host, the task that carries this lane out.
            name: of the membership, the attempt and the lane.
            open_: see `Open`.
            take: see `Take`.
        """
        self._tasks = tasks
        self._name = name
        self._open = open_
        self._take = take
        self._outgoing: dict[Way, Outgoing] = {}
        self._incoming: dict[Way, Incoming] = {}
        self._ended: str | None = None
        self.blamed = -1

    def outgoing(self, way: Way, deadline: float) -> Outgoing:
        """Return the stream on which this task sends; errors as of `wire.streams.open_stream`."""
        if (stream := self._outgoing.get(way)) is None:
            task = self._tasks[way.target]
            stream = self._open(task, f"{self._name} {way.label}", max(0.0, deadline - time.monotonic()))
            self._outgoing[way] = stream
            self._end_late(stream)
        return stream

    def incoming(self, way: Way, deadline: float) -> Incoming:
        """Return the stream on which this task receives; errors as of `Listener.take`."""
        if (stream := self._incoming.get(way)) is None:
            name = f"{self._name} {way.label}"
            stream = self._take(self._tasks[way.source], name, deadline, lambda: self._ended)
            self._incoming[way] = stream
            self._end_late(stream)
        return stream

    @property
    def bytes_sent(self) -> int:
        """Bytes that have left on all streams."""
        return sum(stream.bytes_sent for stream in list(self._outgoing.values()))

    @property
    def bytes_received(self) -> int:
        """The same, the other way."""
        return sum(stream.bytes_received for stream in list(self._incoming.values()))

    def flush(self, deadline: float) -> None:
        """Wait until all that was sent has left; errors as of `Outgoing.flush`."""
        for stream in list(self._outgoing.values()):
            stream.flush(deadline)

    def blame(self, host: int) -> None:
        """Take note of the host because of which a sum fails; only the first one counts."""
        if self.blamed < 0 and self._ended is None:
            self.blamed = host

    def abort(self, reason: str) -> None:
        """From any thread: make all waits, also later ones, raise PeerLostError with this reason."""
        self._ended = self._ended or reason
        for stream in self._streams():
            stream.abort(reason)

    def close(self) -> None:
        """Close all streams; no thread may use them any more."""
        for stream in self._streams():
            stream.close()

    def _streams(self) -> list[Incoming | Outgoing]:
        return [*self._outgoing.values(), *self._incoming.values()]

    def _end_late(self, stream: Incoming | Outgoing) -> None:
        """End a stream that was opened while `abort` was called."""
        if self._ended is not None:
            stream.abort(self._ended)
