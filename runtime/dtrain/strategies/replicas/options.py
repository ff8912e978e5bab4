"""Options of single calls. Names and defaults are those of `tf.distribute`."""

from dataclasses import dataclass, fields, replace
from enum import StrEnum

from dtrain.errors import SpecError


class CommunicationImplementation(StrEnum):
    """The algorithm that TensorFlow would use; here the size and the topology decide."""

    AUTO = "AUTO"
    RING = "RING"
    NCCL = "NCCL"

    @classmethod
    def _missing_(cls, value: object) -> "CommunicationImplementation | None":
        """Return the one of a name in any case of letters; None if there is none."""
        names = {each.value: each for each in cls}
        return names.get(value.upper()) if isinstance(value, str) else None


@dataclass(frozen=True)
class CommunicationOptions:
    """Options of a collective call; see `tf.distribute.experimental.CommunicationOptions`.

    Attributes:
        bytes_per_pack: has no effect: nothing is packed.
        timeout_seconds: after so long a wait for another replica raises; None: after `DEADLINE_S`.
        implementation: has no effect; text is taken in any case of letters.

    Raises:
        SpecError: the number of bytes is negative, or there is no such implementation.
    """

    bytes_per_pack: int = 0
    timeout_seconds: float | None = None
    implementation: CommunicationImplementation | str = CommunicationImplementation.AUTO

    def __post_init__(self) -> None:
        """Check the values as TensorFlow does, which takes any timeout."""
        if self.bytes_per_pack < 0:
            raise SpecError(
                f"CommunicationOptions: expected bytes_per_pack >= 0, found {self.bytes_per_pack}"
            )
        try:
            object.__setattr__(self, "implementation", CommunicationImplementation(self.implementation))
        except ValueError:
            names = ", ".join(CommunicationImplementation)
            raise SpecError(
                f"CommunicationOptions: expected an implementation of {names}, found {self.implementation!r}"
            ) from None

    def merge(self, other: "CommunicationOptions | None") -> "CommunicationOptions":
        """Return the same options, with those that `other` sets to anything but their defaults."""
        unset = CommunicationOptions()
        given = {} if other is None else {field.name: getattr(other, field.name) for field in fields(other)}
        return replace(
            self, **{name: value for name, value in given.items() if value != getattr(unset, name)}
        )


@dataclass(frozen=True)
class RunOptions:
    """Options of `Strategy.run`, which have no effect here; see `tf.distribute.RunOptions`.

    Args:
        experimental_enable_dynamic_batch_size: without effect.
        experimental_bucketizing_dynamic_shape: without effect.
    """

    experimental_enable_dynamic_batch_size: bool = True
    experimental_bucketizing_dynamic_shape: bool = False
