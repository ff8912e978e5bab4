"""The handshake as a pure machine: both ends prove that they have the run's key K, and no secret travels.

    client -> server   Opening     its task, nonce C
    server -> client   Challenge   salt, nonce S, HMAC(K, "server", told)
    client -> server   Proof       its hello, HMAC(K, "client", told, hello)

where `told` is the protocol's version, the salt, C, S, the client's task and the server's task. The labels
keep a proof from being sent back to its maker, the nonces from being used again, and the tasks from being
passed on to another server of the run. A worker that asks to join knows an address and no task: for it any
server of the run will do, and the server's task is empty. The client looks at the server's proof before it
says anything more, so that a process that took a server's address learns the name of a task and nothing else.

The server keeps nothing for a stranger: it recognises its own nonce by a keyed hash inside it, and remembers
for a few seconds only those whose proof was right.
"""

import hmac
import struct
from collections import OrderedDict
from collections.abc import Callable

import msgspec

from dtrain.cluster import JOINING
from dtrain.errors import PeerRefusedError
from dtrain.messages import PROTOCOL_VERSION, Challenge, Hello, Opening, Proof
from dtrain.wire.security.keys import SALT_BYTES

NONCE_BYTES = 32
RANDOM_BYTES = 16
PROOF_LIMIT_S = 10.0
"""A client may take so long from the challenge to its proof."""
TASK_LIMIT_CHARACTERS = 64
STRANGER = "this server belongs to another run, or the secret is another"
"""All that is said to a peer that has proven nothing, at either end."""

_TIME = struct.Struct(">d")
_TAG_BYTES = 16
_JOINING = str(JOINING)
_SERVER_NONCE_BYTES = RANDOM_BYTES + _TIME.size + _TAG_BYTES
_encode = msgspec.msgpack.Encoder().encode

KeyOf = Callable[[bytes], bytes]
"""Makes the key of a salt."""


def answer(hello: Hello, server: str, opening: Opening, challenge: Challenge, key_of: KeyOf) -> Proof:
    """Return the client's answer to a server that has proven itself.

    Args:
        hello: the client's own.
        server: the task that is expected there: ``ps:0``.
        opening: what the client has sent.
        challenge: what came back.
        key_of: makes the key of a salt; it may take a while.

    Raises:
        PeerRefusedError: the server has not the run's key, or is another server of the run.
    """
    if len(challenge.salt) != SALT_BYTES or len(challenge.nonce) != _SERVER_NONCE_BYTES:
        raise PeerRefusedError(STRANGER)
    key = key_of(challenge.salt)
    told = _told(opening.task, server, challenge.salt, opening.nonce, challenge.nonce)
    if not hmac.compare_digest(challenge.proof, _server_proof(key, told)):
        raise PeerRefusedError(STRANGER)
    return Proof(
        hello=hello,
        salt=challenge.salt,
        challenge=challenge.nonce,
        nonce=opening.nonce,
        proof=_client_proof(key, told, hello),
    )


class Examiner:
    """The server's side; one for all its connections and transports. Threads share it."""

    def __init__(self, task: str, own: bytes) -> None:
        """Begin.

        Args:
            task: the server itself: ``ps:0``.
            own: `NONCE_BYTES` random bytes that only this server knows.
        """
        self._task = task
        self._own = own
        self._taken: OrderedDict[bytes, float] = OrderedDict()

    def challenge(
        self, opening: Opening, salt: bytes, key_of: KeyOf, random: bytes, now_s: float
    ) -> Challenge:
        """Answer an opening.

        Args:
            opening: as it came.
            salt: of this server.
            key_of: makes the key of a salt.
            random: `RANDOM_BYTES` new random bytes.
            now_s: seconds of a clock that never goes back.

        Raises:
            PeerRefusedError: it is no opening of dtrain's.
        """
        if len(opening.nonce) != NONCE_BYTES or len(opening.task) > TASK_LIMIT_CHARACTERS:
            raise PeerRefusedError("its opening is not dtrain's")
        head = random + _TIME.pack(now_s)
        nonce = head + self._tag(head, salt, opening.nonce, opening.task)
        told = _told(opening.task, self._task, salt, opening.nonce, nonce)
        return Challenge(salt=salt, nonce=nonce, proof=_server_proof(key_of(salt), told))

    def admit(self, proof: Proof, key_of: KeyOf, now_s: float) -> Hello:
        """Return the hello of a client that has proven itself. A proof is good once.

        Raises:
            PeerRefusedError: it has not; the message is for the server's own log.
        """
        task, nonce = proof.hello.task, proof.challenge
        head, tag = nonce[: -_TAG_BYTES or None], nonce[-_TAG_BYTES:]
        own = self._tag(head, proof.salt, proof.nonce, task)
        if len(nonce) != _SERVER_NONCE_BYTES or not hmac.compare_digest(tag, own):
            raise PeerRefusedError("its proof answers no challenge of this server")
        (begun_s,) = _TIME.unpack_from(head, RANDOM_BYTES)
        if not 0.0 <= now_s - begun_s <= PROOF_LIMIT_S:
            raise PeerRefusedError(f"its proof came more than {PROOF_LIMIT_S:g} s after the challenge")
        told = _told(task, self._task, proof.salt, proof.nonce, nonce)
        expected = _client_proof(key_of(proof.salt), told, proof.hello)
        if not hmac.compare_digest(proof.proof, expected):
            raise PeerRefusedError("its proof is wrong: its secret is another")
        self._forget(now_s)
        if self._taken.setdefault(nonce, begun_s) is not begun_s:
            raise PeerRefusedError("its proof has been used before")
        return proof.hello

    def _tag(self, head: bytes, salt: bytes, nonce: bytes, task: str) -> bytes:
        return hmac.digest(self._own, _encode((head, salt, nonce, task)), "sha256")[:_TAG_BYTES]

    def _forget(self, now_s: float) -> None:
        """Drop what has become too old to be used again, whatever it was."""
        for nonce, begun_s in list(self._taken.items()):
            if now_s - begun_s <= PROOF_LIMIT_S:
                break
            self._taken.pop(nonce, None)


def _told(client: str, server: str, salt: bytes, client_nonce: bytes, server_nonce: bytes) -> bytes:
    server = "" if client == _JOINING else server
    return _encode((PROTOCOL_VERSION, salt, client_nonce, server_nonce, client, server))


def _server_proof(key: bytes, told: bytes) -> bytes:
    return hmac.digest(key, _encode(("server", told)), "sha256")


def _client_proof(key: bytes, told: bytes, hello: Hello) -> bytes:
    return hmac.digest(key, _encode(("client", told, hello)), "sha256")
