from collections.abc import Callable, Sequence
from typing import Any, Unpack

import numpy as _numpy

import dtrain as _dtrain
from dtrain import callbacks as callbacks
from dtrain import compat as compat
from dtrain import data as data
from dtrain import distribute as distribute
from dtrain import errors as errors
from dtrain import tuning as tuning
from dtrain.compat import backend as backend
from dtrain.compat import chance as _chance
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
from dtrain.learning.functions import arithmetic as _arithmetic
from dtrain.learning.functions.tapes import GradientTape as GradientTape
from dtrain.learning.graphs.by_hand import device as device
from dtrain.learning.layers import Input as Input
from dtrain.strategies.choice import TrainingArguments as _TrainingArguments
from dtrain.strategies.choice import get_strategy as get_strategy
from dtrain.strategies.interface import Replica as Replica
from dtrain.strategies.interface import Strategy as Strategy
from dtrain.strategies.interface import Training as Training
from dtrain.strategies.mirrored import MirroredThreads as _Mirrored
from dtrain.strategies.multi_worker_mirrored.strategy import MultiWorkerMirrored as _MultiWorkerMirrored
from dtrain.strategies.parameter_server.strategy import ServersStrategy as _InACluster
from dtrain.strategies.pipeline.strategy import StagesStrategy as _Pipeline
from dtrain.strategies.replicas.options import CommunicationOptions as _CommunicationOptions
from dtrain.strategies.replicas.variable import Variable as Variable
from dtrain.training.architecture import profile as profile
from dtrain.training.functions import from_function as from_function
from dtrain.training.models import Model as Model
from dtrain.training.models import Sequential as Sequential
from dtrain.training.saved_models import load_model as load_model
from dtrain.training.steps import TrainingStep as TrainingStep

__version__: str
keras = _dtrain
utils = _conveniences
math = _arithmetic
random = _chance
bool = _numpy.bool_  # noqa: A001
float16 = _numpy.float16
float32 = _numpy.float32
float64 = _numpy.float64
int8 = _numpy.int8
int16 = _numpy.int16
int32 = _numpy.int32
int64 = _numpy.int64
uint8 = _numpy.uint8

_function: Callable[..., Any]
abs = add = argmax = argmin = cast = clip_by_value = concat = _function  # noqa: A001
constant = convert_to_tensor = cos = cumsum = divide = einsum = equal = _function
exp = expand_dims = floor = gather = greater = greater_equal = less = _function
less_equal = logical_and = logical_not = logical_or = matmul = maximum = minimum = _function
multiply = negative = not_equal = one_hot = ones = ones_like = pow = _function  # noqa: A001
range = reduce_all = reduce_any = reduce_max = reduce_mean = reduce_min = _function  # noqa: A001
reduce_prod = reduce_sum = reshape = round = shape = sigmoid = sign = _function  # noqa: A001
sin = split = sqrt = square = squeeze = stack = stop_gradient = _function
subtract = tanh = tile = transpose = where = zeros = _function
zeros_like = _function

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

class PipelineStrategy(_Pipeline):
    def __init__(  # type: ignore[misc]
        self,
        stages: int | str | Sequence[str] = "auto",
        n_microbatches: int = 8,
        schedule: str = "1F1B",
        cluster_resolver: Any = None,
        **training: Unpack[_PlainSettings],
    ) -> None: ...

class MultiWorkerMirroredStrategy(_MultiWorkerMirrored):
    def __init__(
        self,
        cluster_resolver: Any = None,
        communication_options: _CommunicationOptions | None = None,
        **training: Unpack[_PlainSettings],
    ) -> None: ...
