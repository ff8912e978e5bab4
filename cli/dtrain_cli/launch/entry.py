"""The entry of `dtrain launch`: the fork server starts first, so that its imports run beside `launcher`."""

import os

from dtrain.process.private_variables import SECRET
from dtrain_cli.launch.options import LaunchOptions
from dtrain_cli.targets.fork_server import ForkServer, LifeLine


def launch(options: LaunchOptions) -> int:
    """Start the whole cluster here, watch it, stop it; return the exit code. The calling process must have no
    other children.

    Raises:
        SpecError: the spec, the program or the command is wrong; nothing has been started or left behind.
        RunError: the run directory cannot be used, or another launch uses it.
    """
    _occupy_standard_files()
    os.environ.pop(SECRET, None)  # of another run; no child gets it
    line = LifeLine()
    fork_server = None if options.foreign else ForkServer(line)
    try:
        from dtrain_cli.launch import launcher  # not above: what these import would delay the fork server
        from dtrain_cli.targets.local import LocalTarget

        return launcher.run(options, lambda scene: LocalTarget(line, fork_server))
    finally:
        if fork_server is not None:
            fork_server.kill()


def _occupy_standard_files() -> None:
    """Open /dev/null for each of stdin, stdout and stderr that the caller has closed.

    A pipe of the launcher would get its number otherwise, and with it the output of the tasks.
    """
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(fd, True)
    os.close(fd)
