"""Options of a dataset: how it is to be read and distributed. Source: `tf.data.Options`."""

from copy import deepcopy
from enum import IntEnum
from typing import Any

from dtrain.data.node import Node, Passing, walk
from dtrain.errors import InputError


class AutoShardPolicy(IntEnum):
    """How `Strategy.experimental_distribute_dataset` deals a dataset to several workers.

    Source: `tf.data.experimental.AutoShardPolicy`.

    Attributes:
        OFF: every worker reads all of it.
        AUTO: by files where the pipeline reads files, else by batches.
        FILE: by files; it is an error if there are none, or fewer than workers.
        DATA: by batches: every worker reads all of it and keeps its part.
        HINT: where the pipeline says `shard(SHARD_HINT, SHARD_HINT)`.
    """

    OFF = -1
    AUTO = 0
    FILE = 1
    DATA = 2
    HINT = 3


SHARD_HINT = -1
"""Stands for both arguments of `Dataset.shard` where the policy HINT puts in the workers."""


class _Fields:
    """Named values, which can be set and compared; a name that does not exist is refused."""

    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self.__dict__:
            raise AttributeError(
                f"{type(self).__name__}: there is no option {name!r}; there are {', '.join(self.__dict__)}"
            )
        self.__dict__[name] = value

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.__dict__ == other.__dict__

    def __hash__(self) -> int:
        return hash(type(self))

    def __repr__(self) -> str:
        said = ", ".join(f"{name}={value!r}" for name, value in self.__dict__.items())
        return f"{type(self).__name__}({said})"

    def merged(self, later: "_Fields") -> None:
        """Take over what a later set of the same options says; what it leaves at its default stays."""
        default = type(self)()
        for name, value in later.__dict__.items():
            if isinstance(value, _Fields):
                self.__dict__[name].merged(value)
            elif value != default.__dict__[name]:
                self.__dict__[name] = value


class DistributeOptions(_Fields):
    """How a dataset is distributed.

    Attributes:
        auto_shard_policy: an `AutoShardPolicy`.
    """

    auto_shard_policy: AutoShardPolicy

    def __init__(self) -> None:
        super().__init__(auto_shard_policy=AutoShardPolicy.AUTO)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an option; a policy may be given by its number.

        Raises:
            InputError: there is no such policy.
        """
        if name == "auto_shard_policy":
            try:
                value = AutoShardPolicy(value)
            except ValueError:
                expected = ", ".join(f"AutoShardPolicy.{each.name}" for each in AutoShardPolicy)
                raise InputError(f"auto_shard_policy: expected {expected}; found {value!r}") from None
        super().__setattr__(name, value)


class AutotuneOptions(_Fields):
    """How much a dataset may use to be read ahead.

    Attributes:
        enabled: False keeps depth and threads as AUTOTUNE begins with; None for the default, True.
        cpu_budget: threads that AUTOTUNE may use; None for the default, the cores of this process.
        ram_budget: bytes of what is read ahead; None for the default: 1/8 of this process's memory, shared
            among the tasks of the run on this host.
    """

    enabled: bool | None
    cpu_budget: int | None
    ram_budget: int | None

    def __init__(self) -> None:
        super().__init__(enabled=None, cpu_budget=None, ram_budget=None)


class Options(_Fields):
    """Options of a dataset, for `Dataset.with_options`.

    Attributes:
        experimental_distribute: see `DistributeOptions`.
        autotune: see `AutotuneOptions`.
        deterministic: whether elements keep their order; they always do. None for the default.
    """

    experimental_distribute: DistributeOptions
    autotune: AutotuneOptions
    deterministic: bool | None

    def __init__(self) -> None:
        super().__init__(
            experimental_distribute=DistributeOptions(), autotune=AutotuneOptions(), deterministic=None
        )

    def merge(self, options: "Options") -> "Options":
        """Return new options: these, and over them what others say otherwise than by default."""
        both = deepcopy(self)
        both.merged(options)
        return both


class Optioned(Passing):
    """The source, with options."""

    def __init__(self, source: Node, options: Options) -> None:
        super().__init__(source)
        self.options = options


def options_of(node: Node) -> Options:
    """Return the options of a pipeline; those of a later step, or of a later input, win."""
    options = Options()
    for each in walk(node):
        if isinstance(each, Optioned):
            options.merged(each.options)
    return options
