"""The Estimator's exporters, which keep models that have been evaluated.

    dt.EvalSpec(input_fn, exporters=[dt.BestExporter(), dt.FinalExporter("final")])

They run where evaluations do, in the evaluator or else in the leader, and write files that `dt.load_model`
reads: ``export/<name>/<global step>.dtrain`` in the run directory, or without one in the working directory.

Source: `tf.estimator.Exporter` and its kinds.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from dtrain.errors import InputError
from dtrain.training.models import Model

Results: TypeAlias = Mapping[str, float]


@dataclass
class Exporter:
    """Base of exporters, to override `wants`; `exports_to_keep` (None: all) in the folder `name`."""

    name: str = "exporter"
    exports_to_keep: int | None = None
    written: list[Path] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        if self.exports_to_keep is not None and self.exports_to_keep < 1:
            raise InputError(
                f"{type(self).__name__}: expected exports_to_keep of at least 1 or None, found "
                f"{self.exports_to_keep}"
            )

    def wants(self, results: Results, is_final: bool) -> bool:
        """Return whether to keep the model with these results; the final one is asked about last, again."""
        raise NotImplementedError(f"{type(self).__name__}.wants")

    def export(self, model: Model, global_step: int, results: Results, is_final: bool) -> None:
        """Write the model, if it is wanted, and remove surplus older ones."""
        path = Path(model.strategy.directory or ".", "export", self.name, f"{global_step}.dtrain")
        if not self.wants(results, is_final) or path in self.written:
            return
        model.write(path)
        self.written.append(path)
        while self.exports_to_keep is not None and len(self.written) > self.exports_to_keep:
            self.written.pop(0).unlink(missing_ok=True)


@dataclass
class FinalExporter(Exporter):
    """Keeps the model at the end of training.

    Args:
        name: the folder, below ``export`` in that of the run.
        exports_to_keep: how many models stay; None: all.
    """

    def wants(self, results: Results, is_final: bool) -> bool:
        """Return True for the final model."""
        return is_final


@dataclass
class LatestExporter(Exporter):
    """Keeps the newest evaluated models.

    Args:
        name: the folder, below ``export`` in that of the run.
        exports_to_keep: how many models stay; None: all.
    """

    exports_to_keep: int | None = 5

    def wants(self, results: Results, is_final: bool) -> bool:
        """Return True."""
        return True


@dataclass
class BestExporter(Exporter):
    """Keeps each model that is better than all before it by `compare_fn`; by default the loss is smaller.

    Args:
        name: the folder.
        exports_to_keep: how many models stay; None: all.
        compare_fn: ``(best, current) -> bool``: whether the current results are better.
    """

    name: str = "best_exporter"
    exports_to_keep: int | None = 5
    compare_fn: Callable[[Results, Results], bool] = lambda best, current: current["loss"] < best["loss"]
    best: Results | None = field(default=None, init=False)

    def wants(self, results: Results, is_final: bool) -> bool:
        """Return True for the first model, and for each that is better."""
        if self.best is not None and not self.compare_fn(self.best, results):
            return False
        self.best = results
        return True
