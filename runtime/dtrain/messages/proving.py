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
    """Server to client: the answer to an opening, which proves that the server has the run's key.

    Attributes:
        version: as in `Opening`.
        salt: by which the key was made of the secret; it is the first that a client believes of a server.
        nonce: of the server; it recognises it, and takes it once.
        proof: see `wire.security.proof`.
    """

    version: int = PROTOCOL_VERSION
    salt: bytes
    nonce: bytes
    proof: bytes


class Proof(Message, frozen=True, gc=False, kw_only=True):
    """Client to server: the task says which run it belongs to, and proves that it has the run's key.

    Attributes:
        version: as in `Opening`.
        salt, challenge: of the server's challenge.
        nonce: of the client's opening.
        proof: see `wire.security.proof`.
    """

    version: int = PROTOCOL_VERSION
    hello: Hello
    salt: bytes
    challenge: bytes
    nonce: bytes
    proof: bytes
