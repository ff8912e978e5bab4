"""Messages by which both ends of a connection prove that they belong to one run; see `wire.security`."""

from dtrain.messages.message import Message
from dtrain.messages.opening import PROTOCOL_VERSION, Hello


class Opening(Message, frozen=True, gc=False, kw_only=True):
    """Client to server, the first on every connection: a task would like to talk.

    Attributes:
        version: of the sender's protocol. It is the first field in every version, so that builds of different
            versions can name both.
        nonce: random bytes of the client.
    """

    version: int = PROTOCOL_VERSION
    task: str
    nonce: bytes


class Challenge(Message, frozen=True, gc=False, kw_only=True):
    """Server to client: the answer to an opening. It proves nothing yet.

    Attributes:
        version: as in `Opening`.
        salt: by which the key is made of the secret; a client believes any.
        nonce: of the server; it recognises it, and takes it once.
    """

    version: int = PROTOCOL_VERSION
    salt: bytes
    nonce: bytes


class Proof(Message, frozen=True, gc=False, kw_only=True):
    """Client to server: the task proves that it has the run's key; the second time it says its run as well.

    Attributes:
        version: as in `Opening`.
        task, nonce: of the client's opening.
        salt, challenge: of the server's challenge.
        hello: None until the server has proven itself.
        proof: see `wire.security.proof`.
    """

    version: int = PROTOCOL_VERSION
    task: str
    salt: bytes
    challenge: bytes
    nonce: bytes
    hello: Hello | None = None
    proof: bytes


class Proven(Message, frozen=True, gc=False, kw_only=True):
    """Server to client: the answer to a first proof that is right; now the server has proven itself."""

    proof: bytes
