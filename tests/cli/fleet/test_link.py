"""What an agent's stream is told apart from: the words of ssh, of a login shell, and of the agent itself."""

import subprocess
import sys

import pytest
from launching import wait_until

from dtrain_cli.agent.messages import MAGIC
from dtrain_cli.fleet.link import Link

LOGIN = """
import sys
print("from a login shell", file=sys.stderr, flush=True)
print("a banner", flush=True)
input()
{magic}
{dies}
"""


@pytest.mark.parametrize(
    ("speaks", "dies", "words"),
    [
        (False, "", "a banner\nfrom a login shell"),
        (True, "", ""),
        (True, "print('killed', file=sys.stderr)", "killed"),
    ],
)
def test_words_before_the_agent_spoke_explain_no_later_end(speaks, dies, words):
    magic = f"print({MAGIC.decode()!r}, flush=True); sys.stdin.read()" if speaks else ""
    login = subprocess.Popen(
        [sys.executable, "-c", LOGIN.format(magic=magic, dies=dies)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    link = Link("h1", login)
    try:
        wait_until(lambda: link.read() or "login shell" in link.words(), "the login")
        login.stdin.write(b"go\n")
        login.stdin.flush()
        wait_until(lambda: link.read() or link.spoke == speaks, "the agent")
        login.stdin.close()
        wait_until(lambda: link.read() or link.over, "the end")
        assert link.words().replace("\n\n", "\n") == words
    finally:
        link.kill()
