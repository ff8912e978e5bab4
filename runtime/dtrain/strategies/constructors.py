"""Constructors of the strategies without servers, under the names of `tf.distribute`.

What one makes is the strategy of the process: it is made at the first call, and a later one with the same
wishes, or none, returns it. Alone, one of another kind follows it. What the spec or the command line says
wins, whatever it is: under `dtrain launch --strategy parameter_server` each of them returns the strategy of
that cluster.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Unpack

from dtrain.config import (
    CentralStorageSection,
    MirroredSection,
    MultiWorkerMirroredSection,
    PipelineSection,
    PlainSettings,
)
from dtrain.config.resolution import checked_wishes
from dtrain.errors import SpecError
from dtrain.strategies.choice import place_of, strategy_of_process
from dtrain.strategies.context import TaskContext
from dtrain.strategies.interface import Problem, Strategy, Training
from dtrain.strategies.mirrored import CentralStorage, MirroredThreads, ThreadsSection, ThreadsStrategy
from dtrain.strategies.multi_worker_mirrored.strategy import MultiWorkerMirrored
from dtrain.strategies.replicas.options import CommunicationOptions
from dtrain.strategies.single import SingleStrategy


class _Constructor(Strategy):
    """A class whose `__new__` returns the strategy of the process, so that no object is of this class."""

    if TYPE_CHECKING:  # what is returned has these; without them a type checker takes the class for abstract
        context: TaskContext

        def open(self, problem: Problem) -> Training: ...

        def close(self, error: BaseException | None = None) -> None: ...


class MirroredStrategy(_Constructor):
    """``dt.MirroredStrategy(["CPU:0", "CPU:1"])``: replicas in threads of one process.

    Compare `tf.distribute.MirroredStrategy`.

    Args:
        devices: names such as ``CPU:0``; there are as many replicas. None, or none of them: under a launcher
            `training.replicas`, else one for each core.
        cross_device_ops: how TensorFlow would add up gradients, NCCL among them; here sums are always taken
            in the order of the replicas.
        training: fields of a spec's `training` section, such as ``backup_workers=1``.

    Raises:
        SpecError: a device is given twice or is no CPU; see `strategy_of_process`.
    """

    def __new__(  # type: ignore[misc]
        cls,
        devices: Sequence[str] | None = None,
        cross_device_ops: Any = None,
        **training: Unpack[PlainSettings],
    ) -> Strategy:
        """Return the strategy of this process."""
        return _of(cls.__name__, MirroredSection, devices, training)


class CentralStorageStrategy(_Constructor):
    """``dt.distribute.experimental.CentralStorageStrategy(["CPU:0", "CPU:1"])``: replicas in threads, and one
    thread makes the updates.

    Compare `tf.distribute.experimental.CentralStorageStrategy`.

    Args:
        compute_devices: as `devices` of `MirroredStrategy`.
        parameter_device: the name of the device on which variables lie: all share the memory of one process.
        training: as of `MirroredStrategy`.

    Raises:
        SpecError: as of `MirroredStrategy`.
    """

    def __new__(  # type: ignore[misc]
        cls,
        compute_devices: Sequence[str] | None = None,
        parameter_device: str | None = None,
        **training: Unpack[PlainSettings],
    ) -> Strategy:
        """Return the strategy of this process."""
        if parameter_device is not None:
            _check_devices(cls.__name__, [parameter_device])
        return _of(cls.__name__, CentralStorageSection, compute_devices, training)


MirroredStrategy.register(MirroredThreads)
CentralStorageStrategy.register(CentralStorage)


def _of(
    who: str, section: type[ThreadsSection], devices: Sequence[str] | None, training: PlainSettings
) -> Strategy:
    """Return the process's strategy, which shall have a replica for each device."""
    wishes: dict[str, Any] = {**training, "strategy": section().strategy}
    if devices:
        _check_devices(who, devices)
        number = training.get("replicas")
        if number is not None:
            raise SpecError(f"{who}: give either devices or replicas, which is their number, not both")
        wishes["replicas"] = len(devices)
    strategy = strategy_of_process(checked_wishes(wishes, who), who)
    if devices and isinstance(strategy, ThreadsStrategy) and strategy.num_replicas_in_sync == len(devices):
        strategy.devices = [f"device:CPU:{device.rpartition(':')[2]}" for device in devices]
    return strategy


def _check_devices(who: str, devices: Sequence[str]) -> None:
    """Raise a `SpecError` unless these are different names of CPUs, such as ``CPU:0``."""
    if isinstance(devices, str) or not isinstance(devices, Sequence):
        raise SpecError(f"{who}: devices: expected a list of names such as ['CPU:0'], found {devices!r}")
    for device in devices:
        kind, _, number = str(device).rpartition("/")[2].removeprefix("device:").partition(":")
        if kind.upper() != "CPU" or not number.isdecimal():
            raise SpecError(f"{who}: devices: expected names of CPUs such as 'CPU:0', found {device!r}")
    if len(set(devices)) < len(devices):
        raise SpecError(f"{who}: devices: expected different ones, found {list(devices)}")


class MultiWorkerMirroredStrategy(_Constructor):
    """``dt.MultiWorkerMirroredStrategy()``: each chief and worker of the cluster is a replica.

    The cluster comes from TF_CONFIG, or from the classic flags; without one, this process trains alone.
    Compare `tf.distribute.MultiWorkerMirroredStrategy`.

    Args:
        cluster_resolver: instead of TF_CONFIG and the flags where these name no cluster: it has
            `cluster_spec()`, `task_type` and `task_id`.
        communication_options: its `timeout_seconds` is how long a replica waits for the same ones; None:
            for the patience of dtrain.
        training: as of `MirroredStrategy`.

    Raises:
        SpecError: the resolver names a cluster without this task; see `strategy_of_process`.
    """

    def __new__(  # type: ignore[misc]
        cls,
        cluster_resolver: Any = None,
        communication_options: CommunicationOptions | None = None,
        **training: Unpack[PlainSettings],
    ) -> Strategy:
        """Return the strategy of this process."""
        who = cls.__name__
        if communication_options is not None and not isinstance(communication_options, CommunicationOptions):
            raise SpecError(
                f"{who}: communication_options: expected CommunicationOptions, found "
                f"{type(communication_options).__name__}"
            )
        wishes = {**training, "strategy": MultiWorkerMirroredSection().strategy}
        place = place_of(cluster_resolver, who)
        strategy = strategy_of_process(checked_wishes(wishes, who), who, place)
        if communication_options is not None and communication_options.timeout_seconds is not None:
            strategy.wait_at_most(communication_options.timeout_seconds)
        return strategy


class PipelineStrategy(_Constructor):
    """``dt.PipelineStrategy(stages=3, n_microbatches=8, schedule="1F1B")``: the model is cut into stages, one
    for each chief and worker of the cluster.

    The cluster comes from TF_CONFIG, or from the classic flags; without one, this process trains alone.
    Compare `torch.distributed.pipelining`.

    Args:
        stages: their number, or the names of the layers that begin them; "auto": as many as tasks train.
        n_microbatches: into how many microbatches each batch is cut; None: 8, with "PipeDream" 1.
        schedule: "GPipe" or "1F1B", which give the same bits; "PipeDream" or "PipeDream_2BW", in which stages
            do not wait for each other's updates.
        stage_replicas: how many tasks compute a stage, microbatches in turn, by its number; else one.
        cluster_resolver: as of `MultiWorkerMirroredStrategy`.
        training: as of `MirroredStrategy`, such as `vertical_sync=True`.

    Raises:
        SpecError: as of `MultiWorkerMirroredStrategy`.
    """

    def __new__(  # type: ignore[misc]
        cls,
        stages: int | str | Sequence[str] = "auto",
        n_microbatches: int | None = None,
        schedule: str = "1F1B",
        stage_replicas: Mapping[int, int] = MappingProxyType({}),
        cluster_resolver: Any = None,
        **training: Unpack[PlainSettings],
    ) -> Strategy:
        """Return the strategy of this process."""
        who = cls.__name__
        own = {
            "strategy": PipelineSection().strategy,
            "stages": stages if isinstance(stages, int | str) else list(stages),
            "microbatches": n_microbatches,
            "schedule": str(schedule).lower(),
            "stage_replicas": {str(stage): n for stage, n in stage_replicas.items()},
        }
        wishes = checked_wishes({**training, **own}, who)
        strategy = strategy_of_process(wishes, who, place_of(cluster_resolver, who))
        cls.register(type(strategy))  # its module is loaded by tasks of a pipeline alone
        return strategy


MultiWorkerMirroredStrategy.register(MultiWorkerMirrored)
MultiWorkerMirroredStrategy.register(SingleStrategy)
