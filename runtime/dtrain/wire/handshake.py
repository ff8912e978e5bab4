"""The handshake of every transport, at both ends: rule *Authentication*.

Both ends prove that they have the run's key (`security.proof`); then the server compares run and cluster. A
stranger hears one sentence, and the details stand in the server's own log.
"""

import contextlib
import secrets
import sys
import threading
import time
from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeVar

import msgspec

from dtrain.cluster import TaskId
from dtrain.errors import PeerRefusedError
from dtrain.messages import PROTOCOL_VERSION, Challenge, Hello, Opening, Proof, Proven, Refusal
from dtrain.process.acceptor import GREETING_LIMIT_BYTES
from dtrain.process.assignment import run_id_of
from dtrain.process.plain_text import plain_line
from dtrain.wire.security import proof
from dtrain.wire.security.credentials import Credentials

Greeting = Opening | Challenge | Proof | Proven | Hello | Refusal
"""What may come on a connection before its client is let in."""

Expected = TypeVar("Expected", bound=Greeting)

_FIRST_SAID = {kind.__name__ for kind in (Hello, Opening, Challenge)}
_decoder: msgspec.msgpack.Decoder[Greeting] = msgspec.msgpack.Decoder(Greeting)
_decode_any = msgspec.msgpack.Decoder(list[Any]).decode


encode_greeting: Callable[[Greeting], bytes] = msgspec.msgpack.Encoder().encode


def read_greeting(data: bytes) -> Greeting:
    """Read what comes before the client is accepted, at either end; raise a `PeerRefusedError` for anything
    else. Of another protocol version only the version is read, and `only_version` returned.
    """
    try:
        if len(data) <= GREETING_LIMIT_BYTES:
            match _decode_any(data):
                case [str(name), int(version), *_] if name in _FIRST_SAID and version != PROTOCOL_VERSION:
                    if version is not True:
                        return only_version(version)
            return _decoder.decode(data)
    except (msgspec.DecodeError, ValueError, RecursionError):
        pass
    raise PeerRefusedError("the connection did not open with a dtrain hello")


def only_version(version: int = PROTOCOL_VERSION) -> Hello:
    return Hello(version=version, run_id="", cluster_hash="", task="")


def refused(packet: bytes, error: PeerRefusedError) -> Greeting:
    """Return the answer to a client that is refused after its last packet, in a form that all versions
    read.
    """
    with contextlib.suppress(PeerRefusedError):
        said = read_greeting(packet)
        if isinstance(said, Hello) and said.version != PROTOCOL_VERSION:
            return only_version()
    return Refusal(reason=str(error))


def other_version(peer: str, version: int, own: int = PROTOCOL_VERSION) -> str:
    return (
        f"{peer} speaks version {version} of dtrain's protocol, and the other end version "
        f"{own}: start every task of a run with the same version of dtrain"
    )


def refusal(expected: Hello, hello: Hello) -> str | None:
    """Return why a server refuses a task that has the run's key; None if it accepts it.

    An empty run id and cluster hash are those of a task that does not know them yet.
    """
    if hello.version != expected.version:
        return other_version("the task that connects", hello.version, expected.version)
    by_hand = all(each.run_id == run_id_of(each.cluster_hash) for each in (hello, expected))
    if hello.run_id not in (expected.run_id, "") and not by_hand:
        return f"this is {expected.task} of run {expected.run_id}; {hello.task} belongs to run {hello.run_id}"
    if hello.cluster_hash not in (expected.cluster_hash, ""):
        return (
            f"{hello.task} was started with another cluster than {expected.task} (hashes "
            f"{hello.cluster_hash} and {expected.cluster_hash}); give every task the same chief, worker and "
            "ps addresses, and one that serves elsewhere by now DTRAIN_MOVED_TO=HOST:PORT besides"
        )
    try:
        TaskId.parse(hello.task)
    except ValueError as error:
        return str(error)
    return None


class ServerHandshake:
    """The server's end of the handshake; one for each service. Threads share it."""

    def __init__(self, credentials: Credentials, refuse: Callable[[Hello], str | None]) -> None:
        self._keyring = keyring = credentials.keyring
        self._tls = credentials.tls
        self._refuse = refuse
        self._strangers = Strangers()
        self._examiner = proof.Examiner(credentials.hello.task, secrets.token_bytes(proof.NONCE_BYTES))
        if keyring.is_slow:
            threading.Thread(target=keyring.key, args=(keyring.salt,), name="key", daemon=True).start()

    def answer(self, data: bytes, peer: str) -> Challenge | Proven:
        """Answer an opening, or a client's first proof; anything else raises a `PeerRefusedError`."""
        said = self._read(data, peer)
        keyring, now_s = self._keyring, time.monotonic()
        try:
            if isinstance(said, Opening):
                return self._examiner.challenge(
                    said, keyring.salt, secrets.token_bytes(proof.RANDOM_BYTES), now_s
                )
            if isinstance(said, Proof) and said.hello is None:
                return self._examiner.prove(said, keyring.key, now_s)
            raise PeerRefusedError(f"it opened with a {type(said).__name__}")
        except PeerRefusedError as error:
            raise self._stranger(peer, error) from None

    def receive_hello(
        self,
        receive: Callable[[], Generator[None, None, bytes]],
        send: Callable[[bytes], object],
        peer: str,
        names: Sequence[str] | None = None,
    ) -> Generator[None, None, Hello]:
        """Receive a client's packets until its hello is returned and it has been told so, or told why it is
        refused.
        """
        packet = b""
        try:
            for _ in range(2):
                packet = yield from receive()
                send(encode_greeting(self.answer(packet, peer)))
            packet = yield from receive()
            hello = self.admit(packet, peer, names)
            send(encode_greeting(hello))
            return hello
        except PeerRefusedError as error:
            with contextlib.suppress(OSError):
                send(encode_greeting(refused(packet, error)))
            raise

    def admit(self, data: bytes, peer: str, names: Sequence[str] | None = None) -> Hello:
        """Return the hello of a client that has proven itself and belongs to this run; `peer` is for the log.
        A connection without TLS has no `names` of a certificate (None).
        """
        answer = self._read(data, peer)
        try:
            if not isinstance(answer, Proof):
                raise PeerRefusedError("it has proven nothing")
            hello = self._examiner.admit(answer, self._keyring.key, time.monotonic())
        except PeerRefusedError as error:
            raise self._stranger(peer, error) from None
        if reason := self._refuse(hello) or self._misnamed(hello, names):  # the second needs a task's name
            refused = PeerRefusedError(reason)
            raise refused if self._keyring.proves else self._stranger(peer, refused)
        return hello

    def _misnamed(self, hello: Hello, names: Sequence[str] | None) -> str | None:
        return self._tls.refusal(hello.task, names) if self._tls and names is not None else None

    def _read(self, data: bytes, peer: str) -> Greeting:
        try:
            greeting = read_greeting(data)
        except PeerRefusedError as error:
            self._strangers.note(peer, str(error))
            raise
        if isinstance(greeting, Hello) and greeting.version != PROTOCOL_VERSION:
            raise PeerRefusedError(other_version("the task that connects", greeting.version))
        return greeting

    def _stranger(self, peer: str, error: PeerRefusedError) -> PeerRefusedError:
        self._strangers.note(peer, str(error))
        return PeerRefusedError(proof.STRANGER)


def last_proof(peer: str, place: str, credentials: Credentials, ask: Callable[[bytes], bytes]) -> bytes:
    """Return what a client sends last, with its hello, to a server that has proven itself. `place` names the
    peer for messages; `ask` sends a greeting, and returns what answers it. Nothing that another server
    said is believed: a `PeerRefusedError`.
    """
    keyring, hello = credentials.keyring, credentials.hello
    opening = opening_of(hello.task)
    try:
        challenge = _expected(Challenge, ask(encode_greeting(opening)))
        first = proof.answer(opening, peer, challenge, keyring.key)
        proven = _expected(Proven, ask(encode_greeting(first)))
        if not proof.is_proven(first, peer, proven, keyring.key):
            raise PeerRefusedError(proof.STRANGER)
    except PeerRefusedError as error:
        raise PeerRefusedError(f"{place}: {error}") from None
    keyring.adopt(challenge.salt)
    return encode_greeting(proof.answer(opening, peer, challenge, keyring.key, hello))


def opening_of(task: str) -> Opening:
    return Opening(task=task, nonce=secrets.token_bytes(proof.NONCE_BYTES))


def _expected(kind: type[Expected], data: bytes) -> Expected:
    said = read_greeting(data)
    if isinstance(said, kind):
        return said
    if isinstance(said, Hello) and said.version != PROTOCOL_VERSION:
        raise PeerRefusedError(other_version("it", said.version))
    raise PeerRefusedError(said.reason if isinstance(said, Refusal) else proof.STRANGER)


PAUSE_S = 10.0
REASON_CHARACTERS = 300
"""Without a secret a reason quotes what the peer says of itself."""


class Strangers:
    """Counts refused connections, and prints one line about them each `PAUSE_S` at most. Threads share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._silent_until_s = 0.0
        self._unsaid = 0

    def note(self, peer: str, reason: str) -> None:
        now_s = time.monotonic()
        with self._lock:
            if now_s < self._silent_until_s:
                self._unsaid += 1
                return
            more, self._unsaid = self._unsaid, 0
            self._silent_until_s = now_s + PAUSE_S
        others = f" ({more} more since the last such line)" if more else ""
        line = plain_line(f"dtrain: refused a connection from {peer}: {reason[:REASON_CHARACTERS]}{others}")
        print(line, file=sys.stderr, flush=True)  # noqa: T201
