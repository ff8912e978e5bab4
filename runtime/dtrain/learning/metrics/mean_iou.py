"""Mean intersection over union: how well predicted classes cover the true ones."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from dtrain.errors import InputError
from dtrain.learning.metrics.metric import Metric, divide_no_nan


@dataclass(eq=False)
class MeanIoU(Metric):
    """Mean over classes of true positives / (true positives + false positives + false negatives).

    Shapes: class numbers of one shape.

    Args:
        num_classes: how many classes there are.
    """

    num_classes: int

    default_name: ClassVar[str] = "mean_io_u"

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Add a batch of class numbers of one shape, with a weight for each."""
        truth = np.asarray(y_true).reshape(-1).astype(np.int64)
        predicted = np.asarray(y_pred).reshape(-1).astype(np.int64)
        if truth.shape != predicted.shape:
            raise InputError(
                f"{self.name}: expected y_true of y_pred's shape {np.shape(y_pred)}, found "
                f"{np.shape(y_true)}."
            )
        for classes in (truth, predicted):
            if classes.size and (classes.min() < 0 or classes.max() >= self.num_classes):
                raise InputError(
                    f"{self.name}: expected class numbers in [0, {self.num_classes}), found {classes.min()} "
                    f"to {classes.max()}."
                )
        weights = (
            None if sample_weight is None else np.broadcast_to(sample_weight, np.shape(y_true)).reshape(-1)
        )
        cells = np.bincount(truth * self.num_classes + predicted, weights, minlength=self.num_classes**2)
        self.state["total_confusion_matrix"] += cells.reshape(self.num_classes, self.num_classes)

    def result(self) -> float:
        """Return the mean over the classes that occur in targets or predictions."""
        matrix = self.state["total_confusion_matrix"]
        hits = np.diag(matrix)
        union = matrix.sum(axis=0) + matrix.sum(axis=1) - hits
        return float(divide_no_nan(divide_no_nan(hits, union).sum(), np.count_nonzero(union)))

    def _sums(self) -> dict[str, tuple[int, ...]]:
        return {"total_confusion_matrix": (self.num_classes, self.num_classes)}
