"""The reference and the design pages say all that they promise to list, and name nothing that is gone."""

import ast
import re
import tomllib
from itertools import pairwise

import pytest
from docs.pages import ROOT, anchors

import dtrain as dt
from dtrain import messages
from dtrain.config import (
    CheckpointSection,
    CodeSection,
    DataSection,
    Host,
    KubernetesSection,
    NetworkSection,
    ResourcesSection,
    RestartSection,
    SecuritySection,
    SimulateSection,
    SlurmSection,
    TrainingSettings,
    VertexSection,
    VolumeSection,
    WaitSection,
    WrittenSpec,
)
from dtrain.config.plain_data import keys_of
from dtrain.config.targets import ServerNodesSection
from dtrain_cli.main import cli

DOCS = ROOT / "docs"
RULES = (
    "newest-version",
    "one-decision",
    "determinism",
    "asynchronous-updates",
    "exactly-once",
    "no-silent-wait",
    "authentication",
    "whole-versions",
    "placement",
    "one-batch-a-step",
    "consistent-checkpoints",
    "orderly-end",
    "configuration-changes",
    "aggregated-logs",
)
"""The anchors by which code cites the rules of training together; they stay as they are."""


def text_of(page: str) -> str:
    return (DOCS / page).read_text()


def test_the_protocol_has_every_rule_under_its_anchor_with_its_keepers_and_tests():
    assert set(RULES) <= anchors(DOCS / "design" / "protocol.md")
    for section in text_of("design/protocol.md").split("\n## ")[1:]:
        heading = section.partition("\n")[0]
        if heading != "Numbers in older text":
            flat = " ".join(section.split())
            assert "**Kept by** `" in flat or "**Kept by** " in flat, heading
            assert re.search(r"\*\*Held by\*\* `tests/", flat), heading


def test_every_test_that_the_protocol_names_exists():
    for path in set(re.findall(r"`(tests/[\w/.]+)`", text_of("design/protocol.md"))):
        assert (ROOT / path).exists(), path


WALKED = r"^\| `([\w/.]+\.py)` \| `([\w.]+)` \|"
WALK = re.findall(WALKED, text_of("design/architecture.md"), re.MULTILINE)


@pytest.mark.parametrize("path", sorted({path for path, _ in WALK}))
def test_every_function_of_the_two_walks_exists(path):
    file = next(root / path for root in (ROOT, ROOT / "runtime" / "dtrain") if (root / path).exists())
    there = set()
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.ClassDef):
            there |= {f"{node.name}.{each.name}" for each in node.body if isinstance(each, ast.FunctionDef)}
        elif isinstance(node, ast.FunctionDef):
            there.add(node.name)
    assert not {function for each, function in WALK if each == path} - there


def test_a_spec_goes_from_the_command_to_the_task_in_few_stays():
    walk = text_of("design/architecture.md").partition("## A spec's walk")[2].partition("`with_program`")[0]
    folders = [path.rpartition("/")[0] for path, _ in re.findall(WALKED, walk, re.MULTILINE)]
    assert 10 < 1 + sum(one != next_one for one, next_one in pairwise(folders)) <= 25


def test_both_walks_are_there():
    assert len(WALK) > 60


def walked(first, after):
    """The files and functions of the tables from one heading to another."""
    page = text_of("design/architecture.md")
    part = page[page.index(f"### {first}") : page.index(f"### {after}")]
    return re.findall(r"^\| `([\w/.]+\.py)` \| `([\w.]+)` \|", part, re.MULTILINE)


@pytest.mark.parametrize(
    ("first", "after"), [("In the replica", "In every server"), ("In every server", "The way back")]
)
def test_a_gradient_s_walk_is_short_on_each_side(first, after):
    walk = walked(first, after)
    assert 10 < len(walk) <= 25
    assert len({file for file, _ in walk}) <= 15


SECTIONS = [
    *(
        WrittenSpec,
        TrainingSettings,
        DataSection,
        CheckpointSection,
        RestartSection,
        WaitSection,
        SecuritySection,
    ),
    *(SimulateSection, Host, CodeSection, NetworkSection, SlurmSection, ServerNodesSection),
    *(KubernetesSection, ResourcesSection, VolumeSection, VertexSection),
]


@pytest.mark.parametrize("section", SECTIONS, ids=lambda each: each.__name__)
def test_every_key_of_a_spec_is_in_its_page(section):
    page = text_of("reference/spec.md")
    sections = {"cluster", "training", "checkpoint", "restart", "wait", "security", "simulate", "data"}
    sections |= {"hosts", "place", "code", "python", "network", "slurm", "kubernetes", "vertex"}
    for key in keys_of(section).keys() - sections:
        assert f"`{key}`" in page, f"{section.__name__}.{key}"


def test_every_command_and_every_option_of_launch_is_in_its_page():
    page = text_of("reference/commands.md")
    words = set(re.findall(r"[\w-]+", page))
    assert set(cli.commands) - {"help"} <= words
    for option in cli.commands["launch"].params:
        for spelling in (*option.opts, *option.secondary_opts):
            if spelling.startswith("--"):
                assert f"`{spelling}" in page, spelling


def test_every_callback_message_and_dependency_is_in_its_page():
    callbacks = text_of("reference/callbacks.md")
    for each in set(dt.callbacks.__all__) - {"Callback", "CallbackList", "Logs"}:
        assert f"`{each}`" in callbacks, each
    wire = text_of("design/wire.md")
    assert not [kind.__name__ for kind in messages.AnyMessage.__args__ if f"`{kind.__name__}`" not in wire]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = [re.split(r"[<>=]", each)[0] for each in project["dependencies"]]
    assert not [each for each in named if each not in text_of("reference/dependencies.md")]
