"""A process that tries to reach tasks by hand: first as the user who has started it, then as another one.

python reaching.py UID < {way: address}; it prints, for each secret with which it has tried, what each way told.
"""

import json
import os
import sys
import tempfile
from collections.abc import Mapping
from typing import Any

from dtrain.config import SecuritySection
from dtrain.config.choices import Transport
from dtrain.errors import DtrainError, SpecError
from dtrain.messages import Hello
from dtrain.process.requests import JoinRequest
from dtrain.process.secret import users_secret
from dtrain.roles.joining import ask_for_place
from dtrain.wire.grpc_client import GrpcChannel
from dtrain.wire.one_host.local import LocalChannel
from dtrain.wire.security.credentials import Credentials
from dtrain.wire.streams import open_stream

LET_IN = "let in"
SERVER = "worker:0"
HELLO = Hello(run_id="run-7a5be1", cluster_hash="c1a5bad0", task="worker:1")
LIMIT_S = 20.0


def reach(way: str, address: str, secret: str | None) -> str:
    """Try one way with a secret; what came of it."""
    credentials = Credentials.made(HELLO, secret)
    try:
        if way == "join":
            ask_for_place(_question(address, secret), lambda line: None)
        elif way == "stream":
            open_stream(SERVER, address, "sum", credentials, LIMIT_S).close()
        elif way == "socket":
            LocalChannel(SERVER, address, credentials).close()
        else:
            GrpcChannel(SERVER, address, credentials, LIMIT_S).close()
    except DtrainError as error:
        return str(error)
    return LET_IN


def _question(address: str, secret: str | None) -> JoinRequest:
    return JoinRequest(
        parent=os.getpid(),
        server="the server",
        address=address,
        transport=Transport.GRPC,
        reach_s=LIMIT_S,
        wait_s=LIMIT_S,
        run_id="",
        cluster={"ps": [address]},
        security=SecuritySection(),
        secret=secret,
    )


def main(uid: int, ways: Mapping[str, str]) -> dict[str, Any]:
    """Try all ways as this user, which also imports everything, and then as another one."""

    def all_ways(secret: str | None) -> dict[str, str]:
        return {way: reach(way, address, secret) for way, address in ways.items()}

    told: dict[str, Any] = {"same user": all_ways(users_secret())}
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)
    try:
        told["the user's place"] = users_secret()
    except SpecError as error:
        told["the user's place"] = str(error)
    told["no secret"] = all_ways(None)
    with tempfile.TemporaryDirectory() as home:
        os.environ["XDG_STATE_HOME"] = home
        told["own secret"] = all_ways(users_secret())
    return told


if __name__ == "__main__":
    json.dump(main(int(sys.argv[1]), json.load(sys.stdin)), sys.stdout)
