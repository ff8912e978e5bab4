"""The way to another host through the `ssh` binary: the user's own configuration, jumps and keys hold.

Source: ssh(1), ssh_config(5). ssh exits with 255 for a failure of its own, and so may a program.
"""

import os
import re
import shlex
import subprocess
from collections.abc import Sequence

from dtrain.errors import RunError

OPTIONS = (
    "BatchMode=yes",  # a question for a password would wait behind the console for ever
    "ServerAliveInterval=30",  # the launcher pings, and knows how long a host is waited for
    "ServerAliveCountMax=3",
    "ConnectTimeout=10",
    "ControlMaster=no",  # a shared connection that ends would take other runs with it
)
_FAILED = 255
_NO_COMMAND = 127
_NOT_EXECUTABLE = 126
_FOR_GOOD = (
    (
        r"REMOTE HOST IDENTIFICATION HAS CHANGED|[Hh]ost key .*has changed",
        "has another host key than your known_hosts has: it was installed anew, or another machine answers",
    ),
    (r"Permission denied|Too many authentication failures", "asks for a password or knows no key of yours"),
    (r"Host key verification failed", "has a host key that is not in your known_hosts"),
    (r"Could not resolve hostname|Name or service not known", "is no name that ssh can resolve"),
    (r"Bad configuration option|bad configuration options", "cannot be reached with this ssh configuration"),
)
_BY_CHANCE = (
    r"kex_exchange_identification|Connection (reset|closed|refused|timed out)|No route to host|timed out"
    r"|Network is unreachable|Temporary failure|closed by remote host|Broken pipe|lost connection"
)
_WORDS_MAX = 300
NO_SSH = "there is no ssh here; install an OpenSSH client"
ANOTHER_PYTHON = "set `python` in the spec to the path of a Python that has dtrain"


HERE = "DTRAIN_LAUNCHER_HOST"
"""Names the host on which a detached launcher itself runs: it starts its agent there without a login."""


class AgentOpener:
    """A way to start agents on other hosts, by a command whose standard streams are the agent's."""

    name: str
    missing: str
    """Says that the command is not there."""

    def __init__(self, python: str, foreign: bool) -> None:
        """Open agents with this interpreter on each host; `foreign` if they start no program of dtrain's."""
        self.python = python
        self.agent = [python, "-P", "-m", "dtrain_cli.agent", *(["--command"] if foreign else [])]

    def command(self, host: str) -> list[str]:
        """Return the command line that becomes the agent of a host."""
        raise NotImplementedError

    def open(self, host: str) -> "subprocess.Popen[bytes]":
        """Start the agent of a host; raise a `RunError` if the command is not there."""
        try:
            return subprocess.Popen(
                self.command(host),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=self.environment(),
                start_new_session=True,
            )
        except FileNotFoundError:
            raise RunError(f"{host}: {self.missing}") from None

    def environment(self) -> dict[str, str]:
        return dict(os.environ)

    def explain(self, host: str, code: int, words: str) -> tuple[str, bool]:
        """Return in a sentence why a login has failed, and whether another try may succeed.

        `code` is the exit code of the command; `words` is the end of what it and the other side have printed.
        """
        lines = [line.strip() for line in words.splitlines() if line.strip()]
        quoted = f" ({lines[-1][:_WORDS_MAX]})" if lines else ""
        if code < 0:
            return f"{host}: {self.name} was killed by signal {-code}", True
        if (own := self.reason(host, code, words, quoted)) is not None:
            return f"{host}: {own[0]}", own[1]
        if "No module named" in words and "dtrain" in words:
            install = "install it with `pip install`"
            return f"{host}: {self.python} has no dtrain there; {install}, or {ANOTHER_PYTHON}", False
        return f"{host}: its agent has ended with exit code {code}{quoted}", False

    def reason(self, host: str, code: int, words: str, quoted: str) -> tuple[str, bool] | None:
        """Return what the command says by its own exit codes and words; None: it says nothing of itself."""
        raise NotImplementedError

    def no_python(self, quoted: str) -> tuple[str, bool]:
        return f"there is no {self.python} there{quoted}; {ANOTHER_PYTHON}", False


class Ssh(AgentOpener):
    """The opener of agents by ssh."""

    name = "ssh"
    missing = NO_SSH

    def command(self, host: str) -> list[str]:
        return self.agent if host == os.environ.get(HERE) else login_command(host, self.agent)

    def reason(self, host: str, code: int, words: str, quoted: str) -> tuple[str, bool] | None:
        if code in (_NO_COMMAND, _NOT_EXECUTABLE):
            return self.no_python(quoted)
        if code != _FAILED:
            return None
        for pattern, why in _FOR_GOOD:
            if re.search(pattern, words):  # behind a jump host the last line may be what followed from it
                cause = next(line for line in words.splitlines() if re.search(pattern, line)).strip(" @")
                works = f"`ssh {host}` has to work without a question: try it once, and answer"
                if pattern is _FOR_GOOD[0][0]:
                    works = f"ask who runs it, and only then give `ssh-keygen -R {host}` and log in once"
                return f"it {why} ({cause[:_WORDS_MAX]}); {works}", False
        return f"ssh cannot log in{quoted}", re.search(_BY_CHANCE, words) is not None or not words.strip()


def login_command(host: str, command: Sequence[str]) -> list[str]:
    """Return the command line of a login that becomes a command, which is one word for any login shell."""
    options = [word for option in OPTIONS for word in ("-o", option)]
    return ["ssh", "-T", *options, "--", host, f"exec {shlex.join(command)}"]
