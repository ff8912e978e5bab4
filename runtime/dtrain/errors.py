"""Every exception that dtrain raises on purpose, in one tree.

    DtrainError
    ├── SpecError               the user's: a spec, TF_CONFIG, command line or constructor argument is wrong
    │                           (also a ValueError)
    ├── InputError              the user's: an array, label, dtype or shape does not fit the model
    │                           (also a ValueError)
    ├── ProgramError            the user's: a program that never called dtrain, for example
    ├── RunError                the run directory cannot be used
    │   ├── RunNotFoundError        no run of that id, name or path
    │   └── RunInUseError           another run holds the directory, or writes the same file
    ├── CheckpointError         a checkpoint cannot be written, read or applied to this model
    │   ├── CheckpointDamagedError  its checksums, sizes or header disagree with its manifest
    │   └── CopiesTakenError        the copies at `checkpoint.remote` are another run's
    ├── TrainingError           training cannot go on by the rules of the spec
    │   ├── TooFewReplicasError     fewer live replicas than must be aggregated
    │   └── NonFiniteGradientError  a gradient with NaN or infinity; names the worker
    └── PeerError               another task's
        ├── PeerRefusedError        it answered with a refusal: another run, a wrong plan, a wrong shape
        ├── PeerLostError           it went away, or its lease ran out
        │   └── SharedMemoryError       no memory to share with it on this host; gRPC still works
        └── WaitTimeoutError        it missed the deadline of a wait (also a TimeoutError)

The class names the side at fault (after h11's Local/Remote errors). Refusals that belong to the protocol,
such as a *stale* gradient, are verdicts in a reply, not exceptions. A broken invariant of dtrain itself is an
AssertionError.

`exit_code` is the exit code of a command line that the error ends.
"""


class DtrainError(Exception):
    """Base of all errors that dtrain raises on purpose."""

    exit_code = 1


class SpecError(DtrainError, ValueError):
    """A spec, TF_CONFIG, command line or constructor argument is wrong."""

    exit_code = 2


class InputError(DtrainError, ValueError):
    """An array, label, dtype or shape does not fit the layer, loss or dataset that it was given to."""


class ProgramError(DtrainError):
    """The user's program broke a rule, for example never called dtrain."""


class RunError(DtrainError):
    """A run directory cannot be used."""


class RunNotFoundError(RunError):
    """There is no run of that id, name or path."""

    exit_code = 3


class RunInUseError(RunError):
    """Another run is using the run directory, or writes the same file."""

    exit_code = 2


class CheckpointError(DtrainError):
    """A checkpoint cannot be written, read or applied to this model."""


class CheckpointDamagedError(CheckpointError):
    """A checkpoint's bytes disagree with its manifest."""


class CopiesTakenError(CheckpointError):
    """The copies at `checkpoint.remote` are another run's."""


class TrainingError(DtrainError):
    """Training cannot go on by the rules that the spec sets."""


class TooFewReplicasError(TrainingError):
    """Fewer replicas are alive than must be aggregated."""


class NonFiniteGradientError(TrainingError):
    """A gradient held NaN or infinity; the message names the worker."""


class PeerError(DtrainError):
    """Another task, or the way to it, failed."""


class PeerRefusedError(PeerError):
    """A peer answered with a refusal: another run, another plan, a wrong shape, a wrong secret."""


class PeerLostError(PeerError):
    """A peer went away, or its lease ran out."""


class SharedMemoryError(PeerLostError):
    """There is no memory to share with a peer on this host; messages must be sent again over gRPC."""


class WaitTimeoutError(PeerError, TimeoutError):
    """A wait reached its deadline; the message says for whom and for what."""
