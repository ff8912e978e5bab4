"""Actions beside training, on the leader: Keras's callbacks. Source: `tf.keras.callbacks`."""

from typing import TYPE_CHECKING

from dtrain.absent_names import absent_from
from dtrain.callbacks.backup_and_restore import BackupAndRestore
from dtrain.callbacks.callback import Callback, Logs
from dtrain.callbacks.callback_list import CallbackList
from dtrain.callbacks.csv_logger import CSVLogger
from dtrain.callbacks.early_stopping import EarlyStopping
from dtrain.callbacks.history import History
from dtrain.callbacks.lambda_callback import LambdaCallback
from dtrain.callbacks.learning_rate_scheduler import LearningRateScheduler
from dtrain.callbacks.model_checkpoint import ModelCheckpoint
from dtrain.callbacks.progress_bar import ProgressBar
from dtrain.callbacks.reduce_on_plateau import ReduceLROnPlateau
from dtrain.callbacks.tensorboard import TensorBoard
from dtrain.callbacks.terminate_on_nan import TerminateOnNaN

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
    __getattr__ = absent_from("dtrain.callbacks", __all__)
