from collections.abc import Sequence
from typing import Any, Unpack

import dtrain as _dtrain
from dtrain import callbacks as callbacks
from dtrain import compat as compat
from dtrain import data as data
from dtrain import distribute as distribute
from dtrain import errors as errors
from dtrain.compat import backend as backend
from dtrain.compat import conveniences as _conveniences
from dtrain.compat import datasets as datasets
from dtrain.compat import estimator as estimator
from dtrain.compat import models as models
from dtrain.compat import train as train
from dtrain.compat.estimator import BestExporter as BestExporter
from dtrain.compat.estimator import Estimator as Estimator
from dtrain.compat.estimator import EvalSpec as EvalSpec
from dtrain.compat.estimator import FinalExporter as FinalExporter
from dtrain.compat.estimator import LatestExporter as LatestExporter
from dtrain.compat.estimator import TrainSpec as TrainSpec
from dtrain.compat.estimator import train_and_evaluate as train_and_evaluate
from dtrain.config import PlainSettings as _PlainSettings
from dtrain.data.input_context import InputContext as InputContext
from dtrain.distribute import nn as nn
from dtrain.integrations import from_torch as from_torch
from dtrain.learning import layers as layers
from dtrain.learning import losses as losses
from dtrain.learning import metrics as metrics
from dtrain.learning import optimizers as optimizers
from dtrain.learning.core import activations as activations
from dtrain.learning.core import constraints as constraints
from dtrain.learning.core import initializers as initializers
from dtrain.learning.core import regularizers as regularizers
from dtrain.learning.core.sparse_rows import SparseRows as SparseRows
from dtrain.learning.layers import Input as Input
from dtrain.strategies.choice import TrainingArguments as _TrainingArguments
from dtrain.strategies.choice import get_strategy as get_strategy
from dtrain.strategies.interface import Leader as Leader
from dtrain.strategies.interface import Replica as Replica
from dtrain.strategies.interface import Strategy as Strategy
from dtrain.strategies.interface import Training as Training
from dtrain.strategies.mirrored import MirroredThreads as _Mirrored
from dtrain.strategies.multi_worker_mirrored.strategy import MultiWorkerMirrored as _MultiWorkerMirrored
from dtrain.strategies.parameter_server.strategy import ServersStrategy as _InACluster
from dtrain.strategies.replicas.options import CommunicationOptions as _CommunicationOptions
from dtrain.strategies.replicas.variable import Variable as Variable
from dtrain.training.functions import from_function as from_function
from dtrain.training.models import Model as Model
from dtrain.training.models import Sequential as Sequential
from dtrain.training.saved_models import load_model as load_model
from dtrain.training.steps import TrainingStep as TrainingStep

__version__: str
keras = _dtrain
utils = _conveniences

class ParameterServerStrategy(_InACluster):
    def __init__(
        self,
        cluster_resolver: Any = None,
        variable_partitioner: Any = None,
        **training: Unpack[_TrainingArguments],
    ) -> None: ...

class MirroredStrategy(_Mirrored):
    def __init__(
        self,
        devices: Sequence[str] | None = None,
        cross_device_ops: Any = None,
        **training: Unpack[_PlainSettings],
    ) -> None: ...

class MultiWorkerMirroredStrategy(_MultiWorkerMirrored):
    def __init__(
        self,
        cluster_resolver: Any = None,
        communication_options: _CommunicationOptions | None = None,
        **training: Unpack[_PlainSettings],
    ) -> None: ...
