from typing import Any

from dtrain import callbacks as callbacks
from dtrain import data as data
from dtrain import distribute as distribute
from dtrain import errors as errors
from dtrain import models as models
from dtrain.data import encoding as _encoding
from dtrain.data.input_context import InputContext as InputContext
from dtrain.learning import activations as activations
from dtrain.learning import initializers as initializers
from dtrain.learning import layers as layers
from dtrain.learning import losses as losses
from dtrain.learning import metrics as metrics
from dtrain.learning import optimizers as optimizers
from dtrain.learning import regularizers as regularizers
from dtrain.learning.layers import Input as Input
from dtrain.learning.sparse_rows import SparseRows as SparseRows
from dtrain.strategies.choice import get_strategy as get_strategy
from dtrain.strategies.parameter_server import ParameterServerStrategy as _InACluster
from dtrain.strategy import Strategy as Strategy
from dtrain.training.estimator import Estimator as Estimator
from dtrain.training.estimator import EvalSpec as EvalSpec
from dtrain.training.estimator import TrainSpec as TrainSpec
from dtrain.training.estimator import train_and_evaluate as train_and_evaluate
from dtrain.training.exporters import BestExporter as BestExporter
from dtrain.training.exporters import FinalExporter as FinalExporter
from dtrain.training.exporters import LatestExporter as LatestExporter
from dtrain.training.functions import from_function as from_function
from dtrain.training.models import Model as Model
from dtrain.training.saved_models import load_model as load_model
from dtrain.training.sequential import Sequential as Sequential
from dtrain.training.torch_module import from_torch as from_torch

__version__: str
utils = _encoding

class ParameterServerStrategy(_InACluster):
    def __init__(self, **training: Any) -> None: ...
