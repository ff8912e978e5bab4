"""The first engine that says where this task stands."""

from collections.abc import Callable, Mapping

from dtrain.config import ClusterSection
from dtrain.process.engines import aws_batch, indexed_job, sagemaker, slurm, vertex
from dtrain.process.engines.place import Place

EXPECTED = (
    "TF_CONFIG, CLUSTER_SPEC (Vertex AI), SM_HOSTS (SageMaker), SLURM_PROCID, JOB_COMPLETION_INDEX, or "
    "AWS_BATCH_JOB_NODE_INDEX"
)
"""The variables that are looked for, for messages."""


def find_place(
    environment: Mapping[str, str],
    section: ClusterSection | None,
    own_host: Callable[[str | None], str],
) -> Place | None:
    """Return the place that an engine gives to this task; None where no engine says anything.

    Args:
        environment: the variables. An engine that runs inside another one, such as a pod in which srun
            starts tasks, is asked before the outer one.
        section: the spec's tasks; None without a spec.
        own_host: see `aws_batch.place`; asked there alone.

    Raises:
        SpecError: an engine's variables are wrong, or contradict the spec.
    """
    return (
        vertex.place(environment)
        or sagemaker.place(environment, section)
        or slurm.place(environment, section)
        or indexed_job.place(environment, section)
        or aws_batch.place(environment, section, own_host)
    )
