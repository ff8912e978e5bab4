"""The entry of an agent: ``python -P -m dtrain_cli.agent [--command]``, its launcher at stdin and stdout.

The fork server starts first, so that its imports overlap with those of the agent.
"""

import os
import sys

from dtrain.process.private_variables import SECRET
from dtrain_cli.targets.cold_start import LifeLine
from dtrain_cli.targets.fork_server import ForkServer


def main(arguments: list[str]) -> None:
    """Serve until the launcher is gone; with ``--command`` the tasks are no programs of dtrain's."""
    orders_fd, answers_fd = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(2, 1)  # what others print must not stand between the answers
    os.environ.pop(SECRET, None)
    fork_server = ForkServer(LifeLine(), bare="--command" in arguments)
    try:
        from dtrain.process.start_protocol import ORDER_BYTES_MAX, Lines, MessageStream
        from dtrain_cli.agent.driver import HostAgent
        from dtrain_cli.agent.messages import ORDERS
        from dtrain_cli.targets.local import LocalTarget

        launcher = MessageStream(orders_fd, answers_fd, Lines(ORDERS.decode, ORDER_BYTES_MAX))
        HostAgent(launcher, LocalTarget(fork_server)).run()
    finally:
        fork_server.kill()


if __name__ == "__main__":
    main(sys.argv[1:])
