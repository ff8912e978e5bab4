"""What CI makes of tests that fail: one that passes alone is named, one that fails again fails the run. What it
installs: files with known hashes, of versions that the project admits.
"""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

RUN_TESTS = Path(__file__).parents[1] / ".ci" / "run_tests.py"
UNSTABLE = """
import pathlib
import pytest

@pytest.mark.parametrize("number", range({count}))
def test_it(number):
    been = pathlib.Path(f"been-{{number}}")
    if not been.exists():
        been.touch()
        pytest.fail("for the first time")
"""
BROKEN = "def test_broken():\n    assert False\n"


@pytest.mark.parametrize(
    ("files", "code", "last_lines"),
    [
        ({"unstable": UNSTABLE.format(count=1)}, 0, ["unstable:", "test_unstable.py::test_it[0]"]),
        (
            {"unstable": UNSTABLE.format(count=1), "broken": BROKEN},
            1,
            ["failed again when run alone:", "test_broken.py::test_broken"],
        ),
        ({"unstable": UNSTABLE.format(count=4)}, 1, ["4 tests failed; at most 3", *["test_unstable.py"] * 4]),
    ],
)
def test_what_failed_is_run_once_more_alone(tmp_path, files, code, last_lines):
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    for name, text in files.items():
        (tmp_path / f"test_{name}.py").write_text(text)
    plain = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": "-p xdist"}
    ended = subprocess.run(
        [sys.executable, RUN_TESTS], cwd=tmp_path, env=plain, capture_output=True, text=True, check=False
    )
    assert ended.returncode == code, ended.stdout
    found = ended.stdout.splitlines()[-len(last_lines) :]
    assert all(line.strip().startswith(each) for line, each in zip(found, last_lines, strict=True)), found


def test_commits_that_only_reformat_are_refused(tmp_path):
    def git(*arguments: str) -> str:
        named = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments]
        return subprocess.run(named, cwd=tmp_path, capture_output=True, text=True, check=True).stdout.strip()

    def commit(text: str) -> str:
        (tmp_path / "a.py").write_text(text)
        git("add", "-A")
        git("commit", "-m", "-")
        return git("rev-parse", "HEAD")

    git("init")
    first = commit('"""Says."""\nx = f( 1,\n  2)  # why\n')
    reformats = commit('"""Says."""\n\nx = f(1, 2)  # why\n')
    commit('"""Says more."""\n\nx = f(1, 2)  # why\n')
    commit('"""Says more."""\n\nx = f(1, 2)  # because\n')
    last = commit('"""Says more."""\n\nx = f(2, 1)  # because\n')
    (tmp_path / "page.md").write_text("text")
    commit('"""Says more."""\nx = f(2, 1)  # because\n')

    def checked(since: str) -> tuple[int, list[str]]:
        script = [sys.executable, RUN_TESTS.with_name("refuse_reformats.py"), since]
        ended = subprocess.run(script, cwd=tmp_path, capture_output=True, text=True, check=False)
        return ended.returncode, ended.stderr.splitlines()[1:]

    assert checked(first) == (1, [reformats])
    assert checked(reformats) == (0, [])
    assert checked(last) == (0, [])


ROOT = Path(__file__).parents[1]
LOCK = (ROOT / ".ci" / "requirements.txt").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def wanted(extra: str) -> list[Requirement]:
    """The packages that an extra brings, those of other extras included."""
    found = []
    for requirement in map(Requirement, PROJECT["project"]["optional-dependencies"][extra]):
        nested = [each for name in requirement.extras for each in wanted(name)]
        found += nested if requirement.name == "dtrain" else [requirement]
    return found


def test_ci_installs_only_files_whose_hashes_are_known():
    packages = re.split(r"^(?=\w)", LOCK, flags=re.MULTILINE)[1:]
    assert len(packages) > 50
    for package in packages:
        assert re.fullmatch(
            r"[\w.-]+==[\w.]+( ; [^\\]+)?( \\\n    --hash=sha256:[0-9a-f]{64})+\n", package
        ), package
    assert "://" not in LOCK, "it must not say where packages come from"


def test_what_ci_installs_is_all_that_the_project_asks_for():
    locked = {
        canonicalize_name(name): version
        for name, version in re.findall(r"^([\w.-]+)==(\S+)", LOCK, re.MULTILINE)
    }
    project = [Requirement(text) for text in PROJECT["project"]["dependencies"]]
    build = [Requirement(text) for text in PROJECT["build-system"]["requires"]]
    for requirement in [*project, *build, *wanted("dev")]:
        version = locked.get(canonicalize_name(requirement.name))
        assert version is not None, f"{requirement.name} is not locked: run .ci/lock"
        assert version in requirement.specifier, f"{requirement} is locked at {version}: run .ci/lock"


def test_the_page_of_dependencies_gives_the_versions_of_the_project():
    page = (ROOT / "docs" / "reference" / "dependencies.md").read_text()
    rows = re.findall(r"^\| ([\w, -]+) \| ([\d., ]+) \|", page.partition("## The lowest")[2], re.MULTILINE)
    explained = dict(
        pair for names, versions in rows for pair in zip(names.split(", "), versions.split(", "), strict=True)
    )
    extras = [each for extra in PROJECT["project"]["optional-dependencies"] for each in wanted(extra)]
    asked = {each.name: each for each in [*map(Requirement, PROJECT["project"]["dependencies"]), *extras]}
    assert len(explained) >= 10
    for name, version in explained.items():
        assert str(asked[name].specifier) == f">={version}", name
