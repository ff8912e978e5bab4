"""Every exception that dtrain raises on purpose, in one tree.

    DtrainError
    ├── SpecError               the user's: a spec, TF_CONFIG, command line or constructor argument is wrong
    │   │                       (also a ValueError)
    │   └── NotAStrategyError       a strategy without what is asked of it (also an AttributeError)
    ├── InputError              the user's: an array, label, dtype or shape does not fit the model
    │                           (also a ValueError)
    │   ├── NotBatchedError         elements without an axis of examples (also an IndexError)
    │   ├── NoElementError          the form of a dataset without elements, which its first one would tell
    │   ├── NotADatasetError        another thing where a dataset is expected (also an AttributeError)
    │   ├── NotSupportedError       a combination that TensorFlow leaves out too (also a NotImplementedError)
    │   ├── InvalidArgumentError    tf.errors.InvalidArgumentError: fewer files than workers, for example
    │   ├── NotFoundError           tf.errors.NotFoundError: there is no file to deal to workers
    │   └── OutOfRangeError         tf.errors.OutOfRangeError: an iterator is at its end
    ├── ProgramError            the user's: a program that never called dtrain, for example
    │   ├── ContextError            a call in a replica that belongs outside, or the other way round (also a
    │   │   │                       RuntimeError)
    │   │   └── OtherStrategyError      a model of one strategy in the scope of another (also a ValueError)
    │   ├── CallsDifferError        replicas make different calls; names two of them (also a RuntimeError)
    │   ├── NotAFunctionError       a closure that workers cannot find by its name (also a TypeError)
    │   ├── ClosureError            an exception of the program's own has ended a closure
    │   └── CancelledError          a closure was not begun, because an earlier one had failed
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
        │   ├── PeerGoneError           no process is left at its address
        │   └── SharedMemoryError       no memory to share with it on this host; gRPC still works
        └── WaitTimeoutError        it missed the deadline of a wait (also a TimeoutError)

The class names the side at fault (after h11's Local/Remote errors). Refusals that belong to the protocol,
such as a *stale* gradient, are verdicts in a reply, not exceptions. A broken invariant of dtrain itself is an
AssertionError.

`exit_code` is the exit code of a command line that the error ends.
"""

from importlib import import_module


class DtrainError(Exception):
    """Base of all errors that dtrain raises on purpose."""

    exit_code = 1


class SpecError(DtrainError, ValueError):
    """A spec, TF_CONFIG, command line or constructor argument is wrong."""

    exit_code = 2


class InputError(DtrainError, ValueError):
    """An array, label, dtype or shape does not fit the layer, loss or dataset that it was given to."""


class NotBatchedError(InputError, IndexError):
    """A dataset's elements have no axis of examples; an IndexError too, as TensorFlow raises."""


class NoElementError(InputError):
    """The form of a dataset's elements is known only with the first one, and there is none."""


class NotADatasetError(InputError, AttributeError):
    """Something else was given where a dataset is expected; an AttributeError too, as TensorFlow raises."""


class NotSupportedError(InputError, NotImplementedError):
    """A combination of arguments that TensorFlow does not support either; a NotImplementedError too."""


class InvalidArgumentError(InputError):
    """An argument or an input does not fit another one. Source: `tf.errors.InvalidArgumentError`."""


class NotFoundError(InputError):
    """Something that an operation needs is not there. Source: `tf.errors.NotFoundError`."""


class OutOfRangeError(InputError):
    """An iterator is at its end. Source: `tf.errors.OutOfRangeError`."""


class ProgramError(DtrainError):
    """The user's program broke a rule, for example never called dtrain."""


class ContextError(ProgramError, RuntimeError):
    """A call that belongs outside of the replicas was made in one of them, or the other way round."""


class OtherStrategyError(ContextError, ValueError):
    """A model is compiled in the scope of another strategy than the one that it was made in."""


class CallsDifferError(ProgramError, RuntimeError):
    """Replicas that must all make the same call make different ones, or one makes none."""


class NotAStrategyError(SpecError, AttributeError):
    """A strategy does not have what is asked of it."""


class NotAFunctionError(ProgramError, TypeError):
    """A closure cannot be found by its name in the programs of the workers."""


class ClosureError(ProgramError):
    """An exception of the program's own has ended a closure; the message names it."""


class CancelledError(ProgramError):
    """A closure was not begun, because an earlier one had failed. Compare `tf.errors.CancelledError`."""


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


class PeerGoneError(PeerLostError):
    """No process is left at a peer's address, or another one is there."""


class LeftBehindError(PeerLostError):
    """The other hosts of a run go on without this one.

    The exit code is that of a process which has aborted, so that a launcher starts the task again, which then
    takes part again.
    """

    exit_code = 134


class SharedMemoryError(PeerLostError):
    """There is no memory to share with a peer on this host; messages must be sent again over gRPC."""


class WaitTimeoutError(PeerError, TimeoutError):
    """A wait reached its deadline; the message says for whom and for what."""


def __getattr__(name: str) -> object:
    """Answer for a name that is absent; the errors alone load nothing."""
    known = [key for key, each in globals().items() if isinstance(each, type)]
    missing: object = import_module("dtrain.absent_names").absent_from("dtrain.errors", known)(name)
    return missing
