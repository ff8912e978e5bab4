"""Who takes part: roles, tasks and their addresses; TF_CONFIG and the classic flags, which say so. CONTRACT
section 3.
"""

from dtrain.cluster.spec import ROLE_ORDER, TRAINING_ROLES, ClusterSpec, Role, TaskId, tasks_text

__all__ = ["ROLE_ORDER", "TRAINING_ROLES", "ClusterSpec", "Role", "TaskId", "tasks_text"]
