"""dtrain: one training program becomes a cluster of processes on CPUs; models are Keras's, in numpy.

    import numpy as np
    import dtrain as dt

    x = np.random.default_rng(0).normal(size=(1000, 8)).astype("float32")
    y = (x.sum(axis=1) > 0).astype("int64")
    strategy = dt.get_strategy()                     # of this task's cluster; alone: one process
    with strategy.scope():
        model = dt.Sequential([dt.layers.Dense(16, activation="relu"), dt.layers.Dense(2)])
        loss = dt.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("adam", loss, metrics=["accuracy"])
    model.fit(x, y, batch_size=32, epochs=3)

Saved as `train.py`, ``python train.py`` trains in one process, and ``dtrain launch train.py`` on a cluster.

- dt.Sequential, dt.Model, dt.load_model: models, of dt.layers, dt.losses, dt.metrics and dt.optimizers.
- dt.data: input pipelines, as tf.data. dt.callbacks: what happens beside training. dt.utils: small things.
- dt.MirroredStrategy, dt.MultiWorkerMirroredStrategy, dt.ParameterServerStrategy, dt.PipelineStrategy,
  dt.distribute: who trains. dt.profile: what each layer costs.
- dt.tuning: what a trial of `dtrain tune` reports.
- dt.from_torch, dt.from_function: models of PyTorch, and of functions of your own.
- dt.errors: every exception that dtrain raises on purpose.

In a terminal ``dtrain help dt.layers`` lists what is in a module, and ``dtrain help LSTM`` shows one name.
The packages of dtrain that are not named here are private.
"""

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType, TracebackType
from typing import Any

__version__ = "0.1.0"

# These are loaded when they are first used (PEP 562), so that importing one error class, or asking the
# command line for help, loads neither numpy nor grpc. `__init__.pyi` tells type checkers the same list.
# Functions of tensors by their modules in dtrain.learning.functions, and numpy's dtypes.
_TENSORS = {
    "arithmetic": (
        "abs add argmax argmin clip_by_value cos cumsum divide einsum equal exp floor greater "
        "greater_equal less less_equal logical_and logical_not logical_or matmul maximum minimum multiply "
        "negative not_equal pow reduce_all reduce_any reduce_max reduce_mean reduce_min "
        "reduce_prod reduce_sum round sigmoid sign sin sqrt square stop_gradient subtract tanh"
    ),
    "shapes": (
        "cast concat constant convert_to_tensor expand_dims gather one_hot ones ones_like range reshape "
        "shape split squeeze stack tile transpose where zeros zeros_like"
    ),
}
_DTYPES = "bool float16 float32 float64 int8 int16 int32 int64 uint8"

# Public name -> the module that it is (module alone) or stands in (module:name).
_PUBLIC = {
    "Input": "dtrain.learning.layers:Input",
    "Model": "dtrain.training.models:Model",
    "SparseRows": "dtrain.learning.core.sparse_rows:SparseRows",
    "Sequential": "dtrain.training.models:Sequential",
    "InputContext": "dtrain.data.input_context:InputContext",
    "ParameterServerStrategy": "dtrain.strategies.choice:ParameterServerStrategy",
    "MirroredStrategy": "dtrain.strategies.constructors:MirroredStrategy",
    "MultiWorkerMirroredStrategy": "dtrain.strategies.constructors:MultiWorkerMirroredStrategy",
    "PipelineStrategy": "dtrain.strategies.constructors:PipelineStrategy",
    "Replica": "dtrain.strategies.interface:Replica",
    "TrainingStep": "dtrain.training.steps:TrainingStep",
    "Strategy": "dtrain.strategies.interface:Strategy",
    "Training": "dtrain.strategies.interface:Training",
    "Variable": "dtrain.strategies.replicas.variable:Variable",
    "device": "dtrain.learning.graphs.by_hand:device",
    "load_model": "dtrain.training.saved_models:load_model",
    "Estimator": "dtrain.compat.estimator:Estimator",
    "EvalSpec": "dtrain.compat.estimator:EvalSpec",
    "BestExporter": "dtrain.compat.estimator:BestExporter",
    "FinalExporter": "dtrain.compat.estimator:FinalExporter",
    "LatestExporter": "dtrain.compat.estimator:LatestExporter",
    "TrainSpec": "dtrain.compat.estimator:TrainSpec",
    "from_function": "dtrain.training.functions:from_function",
    "from_torch": "dtrain.integrations:from_torch",
    "train_and_evaluate": "dtrain.compat.estimator:train_and_evaluate",
    "profile": "dtrain.training.architecture:profile",
    "get_strategy": "dtrain.strategies.choice:get_strategy",
    "activations": "dtrain.learning.core.activations",
    "backend": "dtrain.compat.backend",
    "callbacks": "dtrain.callbacks",
    "compat": "dtrain.compat",
    "constraints": "dtrain.learning.core.constraints",
    "data": "dtrain.data",
    "datasets": "dtrain.compat.datasets",
    "distribute": "dtrain.distribute",
    "errors": "dtrain.errors",
    "estimator": "dtrain.compat.estimator",
    "initializers": "dtrain.learning.core.initializers",
    "keras": "dtrain",  # Keras's names stand in dtrain itself
    "layers": "dtrain.learning.layers",
    "losses": "dtrain.learning.losses",
    "metrics": "dtrain.learning.metrics",
    "models": "dtrain.compat.models",
    "nn": "dtrain.distribute.nn",
    "optimizers": "dtrain.learning.optimizers",
    "regularizers": "dtrain.learning.core.regularizers",
    "train": "dtrain.compat.train",
    "tuning": "dtrain.tuning",
    "utils": "dtrain.compat.conveniences",
    "GradientTape": "dtrain.learning.functions.tapes:GradientTape",
    "math": "dtrain.learning.functions.arithmetic",
    "random": "dtrain.compat.chance",
    **{
        name: f"dtrain.learning.functions.{home}:{name}"
        for home, names in _TENSORS.items()
        for name in names.split()
    },
    **{name: f"numpy:{name}{'_' * (name == 'bool')}" for name in _DTYPES.split()},
}

__all__ = ["__version__", *_PUBLIC]


def __getattr__(name: str) -> Any:
    absent_from = import_module("dtrain.absent_names").absent_from
    if name == "config":  # two names of TensorFlow's, in a package that is else private
        return import_module("dtrain.config")
    if name not in _PUBLIC:
        return absent_from("dtrain", __all__)(name)
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = _show
    module, _, attribute = _PUBLIC[name].partition(":")
    value = import_module(module)
    if attribute:
        value = getattr(value, attribute)
    elif not hasattr(value, "__getattr__"):  # the modules that are found here alone
        value.__getattr__ = absent_from(f"dtrain.{name}", value.__all__)  # type: ignore[method-assign]
    globals()[name] = value
    return value


class _PublicPaths:
    """Finder of public modules by the paths of programs: `from dtrain.keras.layers import Dense`."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: Any = None) -> ModuleSpec | None:
        places = name.split(".")[1:]
        while places[:1] == ["keras"]:
            del places[0]
        home = _PUBLIC.get(places[0], "") if places and name.split(".")[1] != "keras" else "keras"
        if not name.startswith(f"{__name__}.") or home in ("", f"{__name__}.{places[0] if places else ''}"):
            return None
        found: Any = sys.modules[__name__]
        for place in places:
            found = getattr(found, place) if place in getattr(found, "__all__", ()) else None
        return ModuleSpec(name, _LoadedModule(found)) if isinstance(found, ModuleType) else None  # type: ignore[arg-type]


class _LoadedModule:
    """Loader of a module that is there, which keeps its own spec."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        self._spec = module.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec


sys.meta_path.insert(0, _PublicPaths)


def _show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print an error that ends a program by its own lines, without the calls inside dtrain.

    With DTRAIN_FULL_TRACEBACK=1 it is printed as Python does.
    """
    import_module("dtrain.runs.failure").show_alone(error)


def __dir__() -> list[str]:
    return sorted(__all__)
