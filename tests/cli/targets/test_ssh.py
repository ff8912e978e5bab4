"""A login that fails: one sentence that names the host, and whether another try may help."""

from row_by_row import every_row

from dtrain_cli.targets.ssh import Ssh

CHANGED_KEY = (
    "@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@\n"
    "@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @\n"
    "IT IS POSSIBLE THAT SOMEONE IS DOING SOMETHING NASTY!\n"
    "Host key for h1 has changed and you have requested strict checking.\n"
    "Host key verification failed."
)


@every_row(
    "code, words, sentence, again",
    [
        (255, "ssh: connect to host h1 port 22: Connection refused", "cannot log in", True),
        (255, "kex_exchange_identification: Connection closed by remote host", "cannot log in", True),
        (255, "", "ssh cannot log in", True),
        (255, "root@h1: Permission denied (publickey,password).", "asks for a password", False),
        (255, "Host key verification failed.", "not in your known_hosts", False),
        (255, CHANGED_KEY, "another host key than your known_hosts has", False),
        (255, CHANGED_KEY, "ssh-keygen -R h1", False),
        (
            255,
            "ssh: Could not resolve hostname h1: Name or service not known",
            "no name that ssh",
            False,
        ),
        (127, "sh: 1: exec: /opt/py/bin/python: not found", "there is no /opt/py/bin/python", False),
        (1, "/usr/bin/python: No module named dtrain_cli", "has no dtrain there", False),
        (1, "OSError: something else", "exit code 1 (OSError: something else)", False),
        (-9, "", "ssh was killed by signal 9", True),
    ],
)
def test_a_failed_login_is_a_sentence(code, words, sentence, again):
    text, retry = Ssh("/opt/py/bin/python", False).explain("h1", code, words)
    assert text.startswith("h1: ")
    assert sentence in text
    assert retry is again
    assert "\n" not in text


def test_the_login_asks_nothing_and_gets_one_word():
    *_, dashes, host, word = Ssh("/my python", False).command("user@h1")
    assert (dashes, host) == ("--", "user@h1")
    assert word == "exec '/my python' -P -m dtrain_cli.agent"
    assert Ssh("py", foreign=True).command("h1")[-1].endswith(" --command")
    assert "BatchMode=yes" in Ssh("py", False).command("h1")


def test_of_a_jump_host_that_fails_the_cause_is_quoted_and_not_what_followed():
    words = (
        "ssh: Could not resolve hostname jump: Name or service not known\n"
        "kex_exchange_identification: Connection closed by remote host\n"
        "Connection closed by UNKNOWN port 65535"
    )
    text, again = Ssh("python", False).explain("h1", 255, words)
    assert "h1: " in text
    assert "hostname jump" in text
    assert not again
