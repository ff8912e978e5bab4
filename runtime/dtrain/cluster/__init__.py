"""The participants of a run: roles, tasks and their addresses."""

from dtrain.cluster.spec import (
    JOINING,
    ROLE_ORDER,
    TRAINING_ROLES,
    AddressBook,
    ClusterSpec,
    Moved,
    Role,
    TaskId,
    tasks_text,
)

__all__ = [
    "JOINING",
    "ROLE_ORDER",
    "TRAINING_ROLES",
    "AddressBook",
    "ClusterSpec",
    "Moved",
    "Role",
    "TaskId",
    "tasks_text",
]
