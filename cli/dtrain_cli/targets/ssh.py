"""The way to another host through the `ssh` binary: the user's own configuration, jumps and keys hold.

Source: ssh(1), ssh_config(5). ssh exits with 255 for a failure of its own, and so may a program.
"""

import re
import shlex
import subprocess
from collections.abc import Sequence

from dtrain.errors import DtrainError

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
    (r"Permission denied|Too many authentication failures", "asks for a password or knows no key of yours"),
    (r"Host key verification failed", "has a host key that is not in your known_hosts, or another one"),
    (r"Could not resolve hostname|Name or service not known", "is no name that ssh can resolve"),
    (r"Bad configuration option|bad configuration options", "cannot be reached with this ssh configuration"),
)
_BY_CHANCE = (
    r"kex_exchange_identification|Connection (reset|closed|refused|timed out)|No route to host|timed out"
    r"|Network is unreachable|Temporary failure|closed by remote host|Broken pipe|lost connection"
)
_WORDS_MAX = 300


class NoSshError(DtrainError):
    """There is no `ssh` on this machine."""

    exit_code = 125


class Ssh:
    """The opener of agents by ssh."""

    def __init__(self, python: str, foreign: bool) -> None:
        """Open agents with this interpreter on each host; `foreign` if they start no program of dtrain's."""
        self._python = python
        self._foreign = foreign

    def command(self, host: str) -> list[str]:
        """Return the command line of one login."""
        return login_command(host, agent_command(self._python, self._foreign))

    def open(self, host: str) -> "subprocess.Popen[bytes]":
        """Log in to a host; raise a `NoSshError` without an ssh."""
        try:
            return subprocess.Popen(
                self.command(host),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except FileNotFoundError:
            raise NoSshError(f"{host}: there is no ssh here; install an OpenSSH client") from None

    def explain(self, host: str, code: int, words: str) -> tuple[str, bool]:
        """Return why a login has ended before its agent spoke, and whether another try may succeed."""
        return explained(host, code, words, self._python)


def agent_command(python: str, foreign: bool) -> list[str]:
    """Return the command line of an agent on its host."""
    return [python, "-P", "-m", "dtrain_cli.agent", *(["--command"] if foreign else [])]


def login_command(host: str, command: Sequence[str]) -> list[str]:
    """Return the command line of a login that becomes a command.

    The command is one word, which a login shell of any kind executes: sh finds it and becomes it.
    """
    options = [word for option in OPTIONS for word in ("-o", option)]
    return ["ssh", "-T", *options, "--", host, f"exec {shlex.join(command)}"]


def explained(host: str, code: int, words: str, python: str) -> tuple[str, bool]:
    """Return the reason of a login that has failed, in one sentence, and whether another try may succeed.

    Args:
        host: its host.
        code: the exit code of ssh.
        words: the end of what ssh and the other side have printed.
        python: the interpreter that was to run there.
    """
    said = _last_line(words)
    quoted = f" ({said})" if said else ""
    if code < 0:
        return f"{host}: ssh was killed by signal {-code}", True
    if code == _FAILED:
        for pattern, why in _FOR_GOOD:
            if re.search(pattern, words):  # the last line may be what followed from it, as behind a jump host
                quoted = next(line for line in words.splitlines() if re.search(pattern, line)).strip()
                return (
                    f"{host}: it {why} ({quoted[:_WORDS_MAX]}); `ssh {host}` has to work without a question",
                    False,
                )
        again = re.search(_BY_CHANCE, words) is not None or not words.strip()
        return f"{host}: ssh cannot log in{quoted}", again
    name = "set `python` in the spec to the path of one that has dtrain"
    if code in (_NO_COMMAND, _NOT_EXECUTABLE):
        return f"{host}: there is no {python} there{quoted}; {name}", False
    if "No module named" in words and "dtrain" in words:
        return f"{host}: {python} has no dtrain there; install it with `pip install`, or {name}", False
    return f"{host}: its agent has ended with exit code {code}{quoted}", False


def _last_line(words: str) -> str:
    lines: Sequence[str] = [line.strip() for line in words.splitlines() if line.strip()]
    return lines[-1][:_WORDS_MAX] if lines else ""
