"""The two streams of an agent: orders come in, answers go out without ever blocking."""

import os
import select
import time
from collections import deque

from dtrain.process.start_protocol import ORDER_BYTES_MAX, Lines
from dtrain_cli.agent.messages import MAGIC, ORDERS, Answer, Order, encode

_READ_BYTES = 1 << 18


class Orders:
    """The orders of a launcher; `over` is true once its stream has ended."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        os.set_blocking(descriptor, False)
        self._lines = Lines(ORDERS.decode, ORDER_BYTES_MAX)
        self.over = False

    def fileno(self) -> int:
        """Return the file descriptor that a selector watches."""
        return self._descriptor

    def read(self) -> list[Order]:
        """Return the orders that have arrived; raise a `ValueError` if one is none of this version."""
        try:
            data = os.read(self._descriptor, _READ_BYTES)
        except BlockingIOError:
            return []
        except ConnectionError:
            data = b""
        self.over = not data
        return self._lines.feed(data)


class Answers:
    """The answers to a launcher; `over` is true once the launcher has closed its end."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        os.set_blocking(descriptor, False)
        self._waiting: deque[bytes] = deque([MAGIC + b"\n"])
        self.waiting_bytes = len(self._waiting[0])
        self.over = False

    def send(self, answer: Answer) -> None:
        """Add an answer to what `pump` writes."""
        line = encode(answer)
        self._waiting.append(line)
        self.waiting_bytes += len(line)

    def pump(self) -> None:
        """Write as much as the stream takes now."""
        while self._waiting and not self.over:
            try:
                written = os.write(self._descriptor, self._waiting[0])
            except BlockingIOError:
                return
            except (BrokenPipeError, ConnectionError):
                self.over = True
                return
            self.waiting_bytes -= written
            if written == len(self._waiting[0]):
                self._waiting.popleft()
            else:
                self._waiting[0] = self._waiting[0][written:]

    def finish(self, wait_s: float) -> None:
        """Write the rest, for so long at most."""
        deadline_s = time.monotonic() + wait_s
        self.pump()
        while self._waiting and not self.over and (left_s := deadline_s - time.monotonic()) > 0:
            select.select([], [self._descriptor], [], left_s)
            self.pump()
