"""The participants of a run: roles, tasks and their addresses."""

from dtrain.cluster.address_book import AddressBook, Moved
from dtrain.cluster.spec import JOINING, ROLE_ORDER, TRAINING_ROLES, ClusterSpec, Role, TaskId, tasks_text

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
