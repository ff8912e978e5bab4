"""The proof that two ends of a connection have one secret: the run's key, and a pure machine.

    client -> server   Opening     its task, nonce C
    server -> client   Challenge   salt, nonce S
    client -> server   Proof       HMAC(K, "client", told)
    server -> client   Proven      HMAC(K, "server", told)
    client -> server   Proof       its hello, HMAC(K, "client", told, hello)

where `told` is the protocol's version, the salt, C, S, the client's task and the server's task. The labels
keep a proof from being sent back to its maker, the nonces from being used again, and the tasks from being
passed on to another server of the run. A worker that asks to join knows an address and no task: for it any
server of the run will do, and the server's task is empty. The client proves first, so that who can open a
connection hears nothing of the key. It says its hello once the server has proven itself, so that a process
that took a server's address learns the name of a task, and a proof by which a person's secret can be guessed.

The server keeps nothing for a stranger: it recognises its own nonce by a keyed hash inside it, and remembers
for a few seconds only those whose last proof was right.

A secret that a person chose can be guessed from what a listener hears, or a rogue at a server's address, so
each guess is made slow: scrypt (RFC 7914) with 32 MiB takes about 120 ms. Of a secret that dtrain made there
is nothing to guess, and HKDF (RFC 5869) takes microseconds. The salt is random, so that nothing can be
computed ahead of an attack.
"""

import hashlib
import hmac
import struct
import threading
from collections import OrderedDict
from collections.abc import Callable

import msgspec

from dtrain.cluster import JOINING
from dtrain.errors import PeerRefusedError
from dtrain.messages import PROTOCOL_VERSION, Challenge, Hello, Opening, Proof, Proven
from dtrain.process.secret import is_random

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


def answer(
    opening: Opening, server: str, challenge: Challenge, key_of: KeyOf, hello: Hello | None = None
) -> Proof:
    """Return the client's proof to an expected server (``ps:0``), with the hello only for one that
    `is_proven`; `key_of` may take a while. A `PeerRefusedError` says that no server of dtrain's says such
    a thing.
    """
    if len(challenge.salt) != SALT_BYTES or len(challenge.nonce) != _SERVER_NONCE_BYTES:
        raise PeerRefusedError(STRANGER)
    told = _transcript(opening.task, server, challenge.salt, opening.nonce, challenge.nonce)
    return Proof(
        task=opening.task,
        salt=challenge.salt,
        challenge=challenge.nonce,
        nonce=opening.nonce,
        hello=hello,
        proof=_client_proof(key_of(challenge.salt), told, hello),
    )


def is_proven(proof: Proof, server: str, proven: Proven, key_of: KeyOf) -> bool:
    told = _transcript(proof.task, server, proof.salt, proof.nonce, proof.challenge)
    return hmac.compare_digest(proven.proof, _server_proof(key_of(proof.salt), told))


class Examiner:
    """The server's side; one for all its connections and transports. Threads share it.

    `own` are `NONCE_BYTES` random bytes that only this server knows.
    """

    def __init__(self, task: str, own: bytes) -> None:
        self._task = task
        self._own = own
        self._taken: OrderedDict[bytes, float] = OrderedDict()

    def challenge(self, opening: Opening, salt: bytes, random: bytes, now_s: float) -> Challenge:
        if len(opening.nonce) != NONCE_BYTES or len(opening.task) > TASK_LIMIT_CHARACTERS:
            raise PeerRefusedError("its opening is not dtrain's")
        head = random + _TIME.pack(now_s)
        return Challenge(salt=salt, nonce=head + self._tag(head, salt, opening.nonce, opening.task))

    def prove(self, proof: Proof, key_of: KeyOf, now_s: float) -> Proven:
        told, _ = self._checked(proof, key_of, now_s)
        return Proven(proof=_server_proof(key_of(proof.salt), told))

    def admit(self, proof: Proof, key_of: KeyOf, now_s: float) -> Hello:
        """Return the hello of a client that has proven itself, once for each proof; the error is for the
        server's log.
        """
        _, begun_s = self._checked(proof, key_of, now_s)
        if proof.hello is None or proof.hello.task != proof.task:
            raise PeerRefusedError("its proof says no hello of its task")
        self._forget(now_s)
        if self._taken.setdefault(proof.challenge, begun_s) is not begun_s:
            raise PeerRefusedError("its proof has been used before")
        return proof.hello

    def _checked(self, proof: Proof, key_of: KeyOf, now_s: float) -> tuple[bytes, float]:
        """Return what both ends of a right proof have said, and when its challenge was made."""
        nonce = proof.challenge
        head, tag = nonce[: -_TAG_BYTES or None], nonce[-_TAG_BYTES:]
        own = self._tag(head, proof.salt, proof.nonce, proof.task)
        if len(nonce) != _SERVER_NONCE_BYTES or not hmac.compare_digest(tag, own):
            raise PeerRefusedError("its proof answers no challenge of this server")
        (begun_s,) = _TIME.unpack_from(head, RANDOM_BYTES)
        if not 0.0 <= now_s - begun_s <= PROOF_LIMIT_S:
            raise PeerRefusedError(f"its proof came more than {PROOF_LIMIT_S:g} s after the challenge")
        told = _transcript(proof.task, self._task, proof.salt, proof.nonce, nonce)
        if not hmac.compare_digest(proof.proof, _client_proof(key_of(proof.salt), told, proof.hello)):
            raise PeerRefusedError("its proof is wrong: its secret is another")
        return told, begun_s

    def _tag(self, head: bytes, salt: bytes, nonce: bytes, task: str) -> bytes:
        return hmac.digest(self._own, _encode((head, salt, nonce, task)), "sha256")[:_TAG_BYTES]

    def _forget(self, now_s: float) -> None:
        for nonce, begun_s in list(self._taken.items()):
            if now_s - begun_s <= PROOF_LIMIT_S:
                break
            self._taken.pop(nonce, None)


def _transcript(client: str, server: str, salt: bytes, client_nonce: bytes, server_nonce: bytes) -> bytes:
    server = "" if client == _JOINING else server
    return _encode((PROTOCOL_VERSION, salt, client_nonce, server_nonce, client, server))


def _server_proof(key: bytes, told: bytes) -> bytes:
    return hmac.digest(key, _encode(("server", told)), "sha256")


def _client_proof(key: bytes, told: bytes, hello: Hello | None) -> bytes:
    return hmac.digest(key, _encode(("client", told, hello)), "sha256")


KEY_BYTES = 32
SALT_BYTES = 16
_KEYS_LIMIT = 16
_SCRYPT_N, _SCRYPT_R, _SCRYPT_P = 1 << 15, 8, 1
_SCRYPT_LIMIT_BYTES = 64 << 20


class Keyring:
    """The keys of one task: one for each salt that a server has sent, computed once. Threads share it."""

    def __init__(self, secret: str | None, salt: bytes) -> None:
        self._secret = secret
        self.salt = salt
        self._adopted = False
        self._keys: OrderedDict[bytes, bytes] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def is_slow(self) -> bool:
        return self._secret is not None and not is_random(self._secret)

    @property
    def proves(self) -> bool:
        """Whether there is a secret at all, so that a proof means anything."""
        return self._secret is not None

    def adopt(self, salt: bytes) -> None:
        """Use the salt of a server that has proven itself from now on, if it is the first one.

        So the servers of a run come to use one salt, and each task computes one key.
        """
        if not self._adopted:
            self._adopted, self.salt = True, salt

    def key(self, salt: bytes) -> bytes:
        if (known := self._keys.get(salt)) is not None:
            return known
        with self._lock:
            if salt not in self._keys:
                while len(self._keys) >= _KEYS_LIMIT:
                    self._keys.popitem(last=False)
                self._keys[salt] = _key(self._secret, salt)
            return self._keys[salt]

    def named(self, *told: str) -> str:
        """Return a name of 32 hexadecimal digits that only owners of a secret made by dtrain can compute."""
        secret = self._secret if self._secret is not None and is_random(self._secret) else ""
        return hmac.digest(secret.encode(), "\0".join(told).encode(), "sha256").hex()[:32]


def _key(secret: str | None, salt: bytes) -> bytes:
    if secret is not None and not is_random(secret):
        return hashlib.scrypt(
            secret.encode(),
            salt=salt,
            n=_SCRYPT_N,
            r=_SCRYPT_R,
            p=_SCRYPT_P,
            maxmem=_SCRYPT_LIMIT_BYTES,
            dklen=KEY_BYTES,
        )
    extracted = hmac.digest(salt, (secret or "").encode(), "sha256")
    return hmac.digest(extracted, b"dtrain connection\x01", "sha256")
