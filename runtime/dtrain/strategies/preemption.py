"""Machines that are taken away at short notice: all replicas agree on a step, save, and end.

The notice is SIGTERM, or comes from a function of the program that watches for it.
"""

import sys
import time
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import numpy as np

from dtrain.errors import InputError
from dtrain.exchange.calls import ReplicaCall
from dtrain.runs.notices import Notice
from dtrain.strategies.choice import get_strategy
from dtrain.strategies.replicas.reduction import ReduceOp

EXIT_CODE = 42
"""The exit code of a process that has saved and may be started again, as TensorFlow's is."""


class TerminationConfig:
    """How a process notices that it is to end, and how it ends.

    See `tf.distribute.experimental.TerminationConfig`.

    Attributes:
        termination_watcher_fn: returns whether the process is to end soon; asked once a second beside
            SIGTERM, which is heard always.
        exit_fn: ends the process after the last checkpoint; None: ``sys.exit(42)``.
        grace_period: seconds between the notice and the end. With it a checkpoint is saved at once, training
            goes on for so long, and then another one is saved.
        save_fn: saves, in the place of the checkpoint manager.
    """

    def __init__(
        self,
        termination_watcher_fn: Callable[[], bool] | None = None,
        exit_fn: Callable[[], Any] | None = None,
        grace_period: float | None = None,
        save_fn: Callable[..., Any] | None = None,
    ) -> None:
        self.termination_watcher_fn = termination_watcher_fn
        self.exit_fn = exit_fn
        self.grace_period = grace_period
        self.save_fn = save_fn

    def exit(self) -> None:
        """End the process."""
        if self.exit_fn is None:
            sys.exit(EXIT_CODE)
        self.exit_fn()


RUNS = "total_run_calls"
"""The counter in a checkpoint that says after how many calls of `run` it was saved."""


class Savable(Protocol):
    """The objects that are saved; a `dt.train.Checkpoint` is one."""

    counters: dict[str, int]

    def managed_in(self, directory: Any) -> "Manager":
        """Return a manager that keeps the newest checkpoint in a folder."""


@runtime_checkable
class Manager(Protocol):
    """The folder that they are saved in; a `dt.train.CheckpointManager` is one."""

    checkpoint: Savable

    def save(self) -> Any:
        """Save the objects."""

    def restore_or_initialize(self) -> Any:
        """Restore the newest checkpoint, if there is one."""


class PreemptionCheckpointHandler:
    """Run a program's training steps; save and end when any process is to end.

    See `tf.distribute.experimental.PreemptionCheckpointHandler`. One process hears SIGTERM, or what the
    configuration watches. All processes of the strategy then save after the same call of `run`, and end;
    started again, they restore what was saved. With a manager every process saves in the manager's folder, a
    folder of its own; with a checkpoint and a folder the leader alone does.
    """

    def __init__(
        self,
        cluster_resolver: object,
        checkpoint_or_checkpoint_manager: Any,
        checkpoint_dir: Any = None,
        termination_config: TerminationConfig | None = None,
    ) -> None:
        """Restore the newest checkpoint, if there is one, and listen.

        Args:
            cluster_resolver: has no effect: the strategy knows its cluster.
            checkpoint_or_checkpoint_manager: a `dt.train.Checkpoint` or a `dt.train.CheckpointManager`.
            checkpoint_dir: for a checkpoint: its folder.
            termination_config: how a process notices that it is to end, and how it ends.

        Raises:
            InputError: it is neither, or the folder is missing.
            ProgramError: the strategy runs no functions of the program in its replicas.
            CheckpointError: the newest checkpoint does not fit.
        """
        del cluster_resolver
        self._config = termination_config or TerminationConfig()
        self._strategy = get_strategy()
        self._group = self._strategy.loops
        self._group.check("PreemptionCheckpointHandler")
        given = checkpoint_or_checkpoint_manager
        self._saves = True
        if isinstance(given, Manager):
            self._manager = given
        elif hasattr(given, "managed_in") and checkpoint_dir is not None:
            self._manager = given.managed_in(checkpoint_dir)
            self._saves = self._strategy.is_leader
        else:
            found = f"{type(given).__name__} and {checkpoint_dir!r}"
            raise InputError(
                "PreemptionCheckpointHandler: expected a dt.train.CheckpointManager, or a "
                f"dt.train.Checkpoint and its checkpoint_dir, found {found}"
            )
        self._counters = self._manager.checkpoint.counters
        self._counters.setdefault(RUNS, 0)
        self._manager.restore_or_initialize()
        self._notice = Notice(self._config.termination_watcher_fn)
        self._grace_until_s: float | None = None
        self._ended = False

    @property
    def total_run_calls(self) -> int:
        """How many calls of `run` there have been, also before a restart."""
        return self._counters[RUNS]

    def run(self, distributed_train_function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a training step; then save and end, if any process of the strategy is to end.

        Every process calls it equally often.
        """
        noticed, over = self._agreed()
        result = distributed_train_function(*args, **kwargs)
        self._counters[RUNS] += 1
        if not self._ended and noticed:
            self._act(over=over)
        return result

    def _act(self, *, over: bool) -> None:
        grace_s = self._config.grace_period
        if self._grace_until_s is not None and not over:
            return
        self._save()
        if grace_s and self._grace_until_s is None:
            self._grace_until_s = time.monotonic() + grace_s
            return
        self._ended = True
        self._notice.close()
        sys.stderr.write(
            f"dtrain: saved after {self.total_run_calls} calls of PreemptionCheckpointHandler.run, as a "
            "process of the strategy is to end; started again, the program goes on from there\n"
        )
        self._config.exit()

    def _agreed(self) -> tuple[bool, bool]:
        """Return whether any process has a notice, and whether any one's grace is over: the same in all."""
        over = self._grace_until_s is not None and time.monotonic() >= self._grace_until_s
        own = np.array([self._notice.heard, over], np.int64)
        if self._group.peers is None:
            return self._notice.heard, over
        call = ReplicaCall.here("PreemptionCheckpointHandler.run")
        of_replicas = [[own]] * self._group.replicas
        found = np.asarray(self._group.summed(call, ReduceOp.SUM, of_replicas)[0])
        return bool(found[0]), bool(found[1])

    def _save(self) -> None:
        if self._config.save_fn is not None:
            self._config.save_fn()
        elif self._saves:
            self._manager.save()
