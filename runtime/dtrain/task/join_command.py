"""Asks a server of a run for a worker's place: `dtrain.process.requests` on stdin and stdout."""

import os
import sys

from dtrain.errors import DtrainError
from dtrain.process import life_line
from dtrain.process.requests import JoinAnswer, encode_join_message, read_join_request
from dtrain.roles.joining import ask_for_place


def main() -> int:
    """Ask, and write the answer."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # errors that matter get messages of dtrain's own
    request = read_join_request(sys.stdin.buffer.read())
    life_line.die_with_parent(request.parent)
    try:
        answer = JoinAnswer(place=ask_for_place(request, _print))
    except DtrainError as error:
        answer = JoinAnswer(kind=type(error).__name__, error=str(error))
    except KeyboardInterrupt:
        return 130
    sys.stdout.buffer.write(encode_join_message(answer))
    return 0


def _print(text: str) -> None:
    print(f"dtrain: {text}", file=sys.stderr, flush=True)  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
