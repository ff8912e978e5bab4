"""The cluster spec: how to train, save, restart and inject faults (docs/reference/spec.md). `cluster` has the
addresses.

All of it is frozen data. A written spec (a file, options, a constructor's arguments) may leave out any key;
`resolution` lays it over the defaults, checks it, and makes a `RunSpec` of it. Each reader reports
mistakes in its own terms: the launcher with file, line and column, a constructor with the argument's name.
"""

from dtrain.config.checkpoint_section import CheckpointSection
from dtrain.config.cluster_section import ROLES, ClusterSection, address_problem
from dtrain.config.kinds import KeyPath
from dtrain.config.nulls import is_none
from dtrain.config.problems import Problem
from dtrain.config.resolution import resolve, with_program
from dtrain.config.restart_section import DEFAULT_RESTART, NO_RESTART, RestartSection
from dtrain.config.run_spec import EMBEDDED_DEFAULT, NO_SERVERS, RunSpec, WrittenSpec
from dtrain.config.security_section import SecuritySection
from dtrain.config.simulate_section import KillFault, LinkFault, PauseFault, SimulateSection
from dtrain.config.training_section import (
    AsyncSection,
    PlainSettings,
    ServerSection,
    SingleSection,
    SyncSection,
    TrainingSection,
    TrainingSettings,
    on_servers,
    training_section,
)
from dtrain.config.wait_section import WaitSection

__all__ = [
    "DEFAULT_RESTART",
    "EMBEDDED_DEFAULT",
    "NO_RESTART",
    "NO_SERVERS",
    "ROLES",
    "AsyncSection",
    "CheckpointSection",
    "ClusterSection",
    "KeyPath",
    "KillFault",
    "LinkFault",
    "PauseFault",
    "PlainSettings",
    "Problem",
    "RestartSection",
    "RunSpec",
    "SecuritySection",
    "ServerSection",
    "SimulateSection",
    "SingleSection",
    "SyncSection",
    "TrainingSection",
    "TrainingSettings",
    "WaitSection",
    "WrittenSpec",
    "address_problem",
    "is_none",
    "on_servers",
    "resolve",
    "training_section",
    "with_program",
]
