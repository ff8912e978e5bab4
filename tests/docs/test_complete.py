"""The reference and the design pages say all that they promise to list, and name nothing that is gone."""

import re
import tomllib

import pytest
from docs.pages import ROOT, anchors
from row_by_row import every_row

import dtrain as dt
from dtrain import messages
from dtrain.config import (
    CheckpointSection,
    CodeSection,
    DataSection,
    Host,
    KubernetesSection,
    NetworkSection,
    RestartSection,
    SecuritySection,
    ServerSection,
    SimulateSection,
    SlurmSection,
    TrainingSettings,
    VolumeSection,
    WaitSection,
    WrittenSpec,
)
from dtrain.config.plain_data import keys_of
from dtrain.config.targets import ServerNodesSection
from dtrain.config.training_section import KINDS
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
        heading, *_, kept = section.strip().split("\n")
        assert re.fullmatch(
            r"`[a-z_/]+\.py`(, `[a-z_/]+\.py`)*; `tests/[a-z_/]+\.py`(, `tests/[a-z_/]+\.py`)*", kept
        ), heading


def test_every_test_that_the_protocol_names_exists():
    for path in set(re.findall(r"`(tests/[\w/.]+)`", text_of("design/protocol.md"))):
        assert (ROOT / path).exists(), path


ARCHITECTURE = text_of("design/architecture.md")
STEPS = text_of("design/steps.md")


def test_every_file_that_the_architecture_names_exists():
    named = set(re.findall(r"`([\w/]+\.py)`", ARCHITECTURE))
    assert len(named) > 15
    assert not {
        path for path in named if not any((root / path).exists() for root in (ROOT, ROOT / "runtime/dtrain"))
    }


def test_every_room_is_on_a_floor_of_the_architecture():
    rooms = {path.parent.name for path in (ROOT / "runtime" / "dtrain").glob("*/__init__.py")}
    assert not {room for room in rooms if f"`{room}/`" not in ARCHITECTURE}


@pytest.mark.parametrize("heading", ["A step", "A death"])
def test_the_sequences_of_steps_send_messages_that_exist(heading):
    drawn = STEPS.partition(f"\n## {heading}\n")[2].partition("\n## ")[0].split("```\n")[1::2]
    sent = set(re.findall(r"\b[A-Z][a-z]+(?:[A-Z][a-z]+)*\b", "".join(drawn)))
    assert len(sent) >= 2
    assert not {each for each in sent if not hasattr(messages, each)}


def test_who_dies_is_said_for_every_strategy():
    table = STEPS.partition("\n## Who dies, and what happens\n")[2].partition("\n## ")[0]
    said = ", ".join(line.split(" | ")[1] for line in table.splitlines() if line.startswith("| "))
    kinds = [kind() for kind in KINDS]
    names = {
        f"servers, {kind.updates}" if isinstance(kind, ServerSection) else kind.strategy for kind in kinds
    }
    names |= {"servers, backups", "servers, local steps", "one host", "hosts", "coordinator"}
    assert not {name for name in names if name not in said}


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
    *(KubernetesSection, VolumeSection),
]


@every_row("section", SECTIONS, ids=lambda each: each.__name__)
def test_every_key_of_a_spec_is_in_its_page(section):
    page = text_of("reference/spec.md")
    sections = {"cluster", "training", "checkpoint", "restart", "wait", "security", "simulate", "data"}
    sections |= {"hosts", "place", "code", "python", "network", "slurm", "kubernetes"}
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
