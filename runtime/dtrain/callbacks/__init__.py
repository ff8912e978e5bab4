"""Actions beside training, on the leader: Keras's callbacks. Source: `tf.keras.callbacks`."""

from typing import TYPE_CHECKING

from dtrain.absent_names import absent_from
from dtrain.callbacks.callback import Callback, CallbackList, LambdaCallback, Logs
from dtrain.callbacks.recording import CSVLogger, History, ProgressBar, TensorBoard
from dtrain.callbacks.steering import EarlyStopping, LearningRateScheduler, ReduceLROnPlateau, TerminateOnNaN

if TYPE_CHECKING:
    from dtrain.callbacks.saving import BackupAndRestore, ModelCheckpoint

__all__ = [
    "BackupAndRestore",
    "CSVLogger",
    "Callback",
    "CallbackList",
    "EarlyStopping",
    "History",
    "LambdaCallback",
    "LearningRateScheduler",
    "Logs",
    "ModelCheckpoint",
    "ProgressBar",
    "ReduceLROnPlateau",
    "TensorBoard",
    "TerminateOnNaN",
]

if not TYPE_CHECKING:
    __getattr__ = absent_from("dtrain.callbacks", __all__, ["dtrain.callbacks.saving"])
