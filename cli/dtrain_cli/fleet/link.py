"""The connection to one agent: the streams of a process that carries them, such as ssh."""

import contextlib
import os
import subprocess

from dtrain.errors import DtrainError
from dtrain.process.start_protocol import Lines, MessageStream
from dtrain_cli.agent.messages import ANSWERS, MAGIC, Answer

_READ_BYTES = 1 << 18
_BANNER_BYTES_MAX = 1 << 16
_WORDS_BYTES = 4096
_END_S = 2.0


class HostError(DtrainError):
    """A host that cannot be used for a run; the message names it."""

    exit_code = 125


class Link(MessageStream[Answer]):
    """The connection to the agent on `host`."""

    def __init__(self, host: str, process: "subprocess.Popen[bytes]") -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self._in, self._out, self._err = process.stdin, process.stdout, process.stderr
        super().__init__(self._out.fileno(), self._in.fileno(), Lines(ANSWERS.decode))
        os.set_blocking(self._err.fileno(), False)
        self.host = host
        self._process = process
        self._banner: bytes | None = b""
        self._words = b""

    @property
    def spoke(self) -> bool:
        return self._banner is None

    @property
    def writing_end(self) -> int:
        return self._in.fileno()

    def words(self) -> str:
        """Return what was last printed beside the answers, by ssh, a login shell or a dying agent."""
        self._read_words()
        banner = (self._banner or b"")[-_WORDS_BYTES:]
        return (banner + b"\n" + self._words).decode(errors="replace").strip()

    def read(self) -> list[Answer]:
        """Return what has arrived; raise a `HostError` if an answer is none of this version."""
        self._read_words()
        data = self._arrived()
        if self._banner is not None:
            data = self._behind_banner(data)
        try:
            return self._lines.feed(data)
        except ValueError as error:
            raise HostError(f"{self.host}: its agent is not heard any more: it has said {error}") from None

    def exit_code(self) -> int:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(_END_S)
        self._process.kill()
        return self._process.wait()

    def close(self) -> None:
        """End the stream, at which the agent ends everything that it has started."""
        self.end()
        with contextlib.suppress(OSError):
            self._in.close()

    def kill(self) -> None:
        """End the process too. It may be repeated."""
        self.over = True
        self.close()
        self._process.kill()
        self._process.wait()
        for stream in (self._out, self._err):
            stream.close()

    def _read_words(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            for _ in range(16):  # it may be printed faster than it is read
                self._words = (self._words + os.read(self._err.fileno(), _READ_BYTES))[-_WORDS_BYTES:]

    def _behind_banner(self, data: bytes) -> bytes:
        assert self._banner is not None
        self._banner += data
        before, magic, behind = self._banner.partition(MAGIC + b"\n")
        if not magic:
            if len(before) > _BANNER_BYTES_MAX:
                raise HostError(f"{self.host}: its login prints without end, and starts no agent")
            return b""
        self._words = b""  # of the login shell, which explains nothing that comes later
        self._banner = None
        return behind
