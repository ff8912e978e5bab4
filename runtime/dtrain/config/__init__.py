"""The cluster spec: how to train, save, restart and inject faults (docs/reference/spec.md). `cluster` has the
addresses.

All of it is frozen data. A written spec (a file, options, a constructor's arguments) may leave out any key;
`resolution` lays it over the defaults, checks it, and makes a `RunSpec` of it. Each reader reports
mistakes in its own terms: the launcher with file, line and column, a constructor with the argument's name.
"""

from dtrain.config.devices import (  # noqa: F401 - of `dt.config`
    list_logical_devices,
    list_physical_devices,
    threading,
)
from dtrain.config.plain_data import KeyPath, Problem, is_none
from dtrain.config.resolution import resolve, with_program
from dtrain.config.run_spec import (
    EMBEDDED_DEFAULT,
    NO_SERVERS,
    RunSpec,
    WrittenSpec,
    default_cluster,
)
from dtrain.config.sections import (
    DEFAULT_RESTART,
    NO_RESTART,
    ROLES,
    CheckpointSection,
    ClusterSection,
    DataSection,
    RestartSection,
    SecuritySection,
    WaitSection,
    address_problem,
)
from dtrain.config.simulate_section import KillFault, LinkFault, PauseFault, SimulateSection
from dtrain.config.targets import (
    CodeSection,
    Host,
    KubernetesSection,
    NetworkSection,
    SlurmSection,
    VolumeSection,
    read_hosts,
)
from dtrain.config.training_section import (
    AsyncSection,
    CentralStorageSection,
    ClusterTraining,
    InOneTask,
    MirroredSection,
    MultiWorkerMirroredSection,
    OuterSection,
    PipelineSection,
    PlainSettings,
    ServerSection,
    SingleSection,
    SynchronousSection,
    SyncSection,
    TrainingSection,
    TrainingSettings,
    kind_of,
    local_steps_of,
    on_servers,
    outer_of,
    shares_by_speed,
    training_section,
)

__all__ = [
    "DEFAULT_RESTART",
    "EMBEDDED_DEFAULT",
    "NO_RESTART",
    "NO_SERVERS",
    "ROLES",
    "AsyncSection",
    "CentralStorageSection",
    "CheckpointSection",
    "ClusterSection",
    "ClusterTraining",
    "CodeSection",
    "DataSection",
    "Host",
    "InOneTask",
    "KeyPath",
    "KillFault",
    "KubernetesSection",
    "LinkFault",
    "MirroredSection",
    "MultiWorkerMirroredSection",
    "NetworkSection",
    "OuterSection",
    "PauseFault",
    "PipelineSection",
    "PlainSettings",
    "Problem",
    "RestartSection",
    "RunSpec",
    "SecuritySection",
    "ServerSection",
    "SimulateSection",
    "SingleSection",
    "SlurmSection",
    "SyncSection",
    "SynchronousSection",
    "TrainingSection",
    "TrainingSettings",
    "VolumeSection",
    "WaitSection",
    "WrittenSpec",
    "address_problem",
    "default_cluster",
    "is_none",
    "kind_of",
    "local_steps_of",
    "on_servers",
    "outer_of",
    "read_hosts",
    "resolve",
    "shares_by_speed",
    "training_section",
    "with_program",
]
