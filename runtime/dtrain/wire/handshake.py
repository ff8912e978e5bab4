"""The rules by which a server lets a task in: rule *Authentication* (docs/design/protocol.md#authentication).

A stranger is refused, and two runs on one machine never mix.
"""

import hmac
from typing import Any

import msgspec

from dtrain.cluster import TaskId
from dtrain.errors import PeerRefusedError
from dtrain.messages import PROTOCOL_VERSION, Hello, Refusal

_decoder: msgspec.msgpack.Decoder[Hello | Refusal] = msgspec.msgpack.Decoder(Hello | Refusal)
_decode_any = msgspec.msgpack.Decoder(list[Any]).decode


def read_opening(data: bytes | msgspec.Raw) -> Hello | Refusal:
    """Read the first message that comes on a connection, at either end.

    Of a hello of another protocol version only the version is read: everything else may mean something else.

    Raises:
        PeerRefusedError: the bytes are no such message.
    """
    try:
        match _decode_any(data):
            case [Hello.__name__, int(version), *_] if version != PROTOCOL_VERSION and version is not True:
                return only_version(version)
        return _decoder.decode(data)
    except (msgspec.DecodeError, ValueError, RecursionError):
        raise PeerRefusedError("the connection did not open with a dtrain hello") from None


def only_version(version: int = PROTOCOL_VERSION) -> Hello:
    """Return a hello that says nothing but the version of its sender's protocol."""
    return Hello(version=version, run_id="", cluster_hash="", task="")


def other_version(peer: str, version: int, own: int) -> str:
    """Say that a peer's protocol has another version than the own one."""
    return (
        f"{peer} speaks version {version} of dtrain's protocol, and the other end version "
        f"{own}: start every task of a run with the same version of dtrain"
    )


def refusal(expected: Hello, hello: Hello) -> str | None:
    """Return why a server does not talk to `hello`; None if it does. `expected` is its own hello."""
    if hello.version != expected.version:
        return other_version("the task that connects", hello.version, expected.version)
    if hello.run_id != expected.run_id:
        return f"this is {expected.task} of run {expected.run_id}; {hello.task} belongs to run {hello.run_id}"
    if hello.cluster_hash != expected.cluster_hash:
        return (
            f"{hello.task} was started with another cluster than {expected.task} (hashes "
            f"{hello.cluster_hash} and "
            f"{expected.cluster_hash}); give every task the same chief, worker and ps addresses"
        )
    if not hmac.compare_digest((expected.secret or "").encode(), (hello.secret or "").encode()):
        return (
            f"{hello.task} did not present the secret of {expected.task}; give every task the same "
            "DTRAIN_SECRET or secret_file"
        )
    try:
        TaskId.parse(hello.task)
    except ValueError as error:
        return str(error)
    return None
