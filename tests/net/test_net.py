"""Nothing that users and their scripts rely on changes unseen; `python tests/net/freeze.py` writes a decided change.

One process makes all pages, in an environment of its own, and each test compares some of them.
"""

import subprocess
import sys
from pathlib import Path

import pytest
from net import freeze
from net.exact_models import expected
from net.runs import STRATEGIES

GROUPS = (
    "names",
    "help",
    "options.txt",
    "environment_variables.txt",
    "spec",
    "wrong",
    "runs",
    "exit_codes.txt",
)


@pytest.fixture(scope="module")
def now(tmp_path_factory) -> dict[str, str]:
    """Return all pages as they are now."""
    folder = tmp_path_factory.mktemp("net") / "pages"
    command = [sys.executable, freeze.__file__, "--to", folder]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return freeze.read(folder)


@pytest.mark.parametrize("group", GROUPS)
def test_what_users_rely_on_is_as_it_was(group, now):
    before = freeze.read(freeze.FROZEN)
    pages = sorted(name for name in {*before, *now} if Path(name).parts[0] == group)
    assert pages
    differences = [freeze.difference(before.get(name, ""), now.get(name, ""), name) for name in pages]
    assert not any(differences), "\n".join(
        [
            "decide whether users may see this; `python tests/net/freeze.py` writes it down:",
            *filter(None, differences),
        ]
    )


def test_every_page_can_be_made_and_has_a_test(now):
    assert freeze.ERRORS not in now, now[freeze.ERRORS]
    assert {Path(name).parts[0] for name in now} == set(GROUPS)


def test_every_strategy_comes_to_the_numbers_of_one_process_bit_for_bit(now):
    lines = now["runs/weights.txt"].splitlines()
    assert not [line for line in lines if "WRONG" in line]
    assert [line for line in lines if "sha256" in line] == [
        f"{name}, sha256: {expected()['sha256']}" for name in sorted(STRATEGIES)
    ]


def test_every_key_of_a_spec_takes_a_value_and_refuses_others(now):
    said = {"has": {}, "takes": {}, "refuses": {}}
    for line in now["spec/keys.txt"].splitlines():
        key, verb, rest = line.split(" ", 2)
        said[verb][key] = rest
    keys = {
        f"{section}.{name}".removeprefix("spec.")
        for section, names in said["has"].items()
        for name in names.split()
    }
    assert set(said["takes"]) == set(said["refuses"]) == keys
    assert not [key for key, values in said["takes"].items() if values == "none of these"]
