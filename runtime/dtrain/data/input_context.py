"""The replicas of an input function, for that function (tf.distribute.InputContext)."""

from dataclasses import dataclass

from dtrain.errors import InputError


@dataclass(frozen=True)
class InputContext:
    """The number of an input pipeline, and of the replicas that share the data.

    Attributes:
        num_input_pipelines: how many pipelines there are, one a worker.
        input_pipeline_id: this one's number, from 0.
        num_replicas_in_sync: how many replicas share a global batch.
    """

    num_input_pipelines: int = 1
    input_pipeline_id: int = 0
    num_replicas_in_sync: int = 1

    def get_per_replica_batch_size(self, global_batch_size: int) -> int:
        """Return one replica's batch size; raise an `InputError` if the replicas do not divide the batch."""
        if global_batch_size % self.num_replicas_in_sync:
            raise InputError(
                "expected a global_batch_size divisible by num_replicas_in_sync "
                f"({self.num_replicas_in_sync}), "
                f"found {global_batch_size}."
            )
        return global_batch_size // self.num_replicas_in_sync

    def __str__(self) -> str:
        return (
            f"tf.distribute.InputContext(input pipeline id {self.input_pipeline_id}, total: "
            f"{self.num_input_pipelines})"
        )
