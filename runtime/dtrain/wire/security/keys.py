"""The key of a run, made of its secret.

A secret that a person chose can be guessed from what a listener hears, or a rogue at a server's address, so
each guess is made slow: scrypt (RFC 7914) with 32 MiB takes about 120 ms. Of a secret that dtrain made there
is nothing to guess, and HKDF (RFC 5869) takes microseconds. The salt is random, so that nothing can be
computed ahead of an attack.
"""

import hashlib
import hmac
import threading
from collections import OrderedDict

from dtrain.process.secret import is_random

KEY_BYTES = 32
SALT_BYTES = 16
_KEYS_LIMIT = 16
_SCRYPT_N, _SCRYPT_R, _SCRYPT_P = 1 << 15, 8, 1
_SCRYPT_LIMIT_BYTES = 64 << 20


class Keyring:
    """The keys of one task: one for each salt that a server has told, computed once. Threads share it."""

    def __init__(self, secret: str | None, salt: bytes) -> None:
        """Compute nothing yet.

        Args:
            secret: of the run; None: there is none, and every peer has the key.
            salt: random bytes, which this task tells if it serves.
        """
        self._secret = secret
        self._salt = salt
        self._adopted = False
        self._keys: OrderedDict[bytes, bytes] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def is_slow(self) -> bool:
        """Whether a key takes noticeable time."""
        return self._secret is not None and not is_random(self._secret)

    @property
    def proves(self) -> bool:
        """Whether there is a secret at all, so that a proof means anything."""
        return self._secret is not None

    @property
    def salt(self) -> bytes:
        """The salt that this task tells as a server."""
        return self._salt

    def adopt(self, salt: bytes) -> None:
        """Tell from now on the salt of a server that has proven itself, if it is the first one.

        So the servers of a run come to tell one salt, and each task computes one key.
        """
        if not self._adopted:
            self._adopted, self._salt = True, salt

    def key(self, salt: bytes) -> bytes:
        """Return the key for a salt, `KEY_BYTES` long."""
        if (known := self._keys.get(salt)) is not None:
            return known
        with self._lock:
            if salt not in self._keys:
                while len(self._keys) >= _KEYS_LIMIT:
                    self._keys.popitem(last=False)
                self._keys[salt] = _key(self._secret, salt)
            return self._keys[salt]

    def named(self, *told: str) -> str:
        """Return a name of 32 hexadecimal digits for what is told.

        Nobody without a secret that dtrain has made can compute it; of another secret it says nothing.
        """
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
