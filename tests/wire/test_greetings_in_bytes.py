"""What is read of a peer that has proven nothing is short, however well it is formed."""

import msgspec
import pytest

from dtrain.errors import PeerRefusedError
from dtrain.messages import PROTOCOL_VERSION, Hello
from dtrain.process.acceptor import GREETING_LIMIT_BYTES
from dtrain.wire.handshake import encode_greeting, read_greeting


def of_length(nbytes: int, **fields: object) -> Hello:
    """Return a hello that has this length when it is encoded."""
    hello = Hello(run_id="r" * 1000, cluster_hash="c", task="worker:1", **fields)
    return msgspec.structs.replace(hello, run_id="r" * (nbytes - len(encode_greeting(hello)) + 1000))


@pytest.mark.parametrize("version", [PROTOCOL_VERSION, PROTOCOL_VERSION + 1])
def test_a_greeting_that_is_one_byte_too_long_is_refused_as_none(version):
    longest = encode_greeting(of_length(GREETING_LIMIT_BYTES, version=version))
    assert len(longest) == GREETING_LIMIT_BYTES
    assert read_greeting(longest).version == version
    with pytest.raises(PeerRefusedError, match="did not open with a dtrain hello"):
        read_greeting(encode_greeting(of_length(GREETING_LIMIT_BYTES + 1, version=version)))
