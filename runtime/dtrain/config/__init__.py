"""The cluster spec without its addresses' meaning: how to train, save, restart and misbehave. CONTRACT
section 3.

All of it is frozen data. Types say what a field may hold, `problems()` says what types cannot: ranges and
rules between fields. What reads a spec (the launcher, with file, line and column; a constructor, with the
argument's name) shows what `problems()` yields; the rules stand nowhere else.
"""

from dtrain.config.checkpoint_section import CheckpointSection
from dtrain.config.cluster_section import ROLES, ClusterSection, address_problem
from dtrain.config.nulls import is_none, with_nulls
from dtrain.config.problems import Problem
from dtrain.config.restart_section import DEFAULT_RESTART, RestartSection
from dtrain.config.run_spec import EMBEDDED_DEFAULT, NO_SERVERS, RunSpec
from dtrain.config.simulate_section import KillFault, LinkFault, PauseFault, SimulateSection
from dtrain.config.training_section import TrainingSection
from dtrain.config.wait_section import WaitSection

__all__ = [
    "DEFAULT_RESTART",
    "EMBEDDED_DEFAULT",
    "NO_SERVERS",
    "ROLES",
    "CheckpointSection",
    "ClusterSection",
    "KillFault",
    "LinkFault",
    "PauseFault",
    "Problem",
    "RestartSection",
    "RunSpec",
    "SimulateSection",
    "TrainingSection",
    "WaitSection",
    "address_problem",
    "is_none",
    "with_nulls",
]
