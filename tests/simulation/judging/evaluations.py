"""What the evaluator has evaluated: every call of `fit` to its final checkpoint, once, with its values.

Rule *Orderly end* (docs/design/protocol.md#orderly-end).
"""

from collections import defaultdict
from typing import Any

import numpy as np
from simulation.disk import Saved
from simulation.judging.promises import Promise
from simulation.model import Model

from dtrain.checkpoints import EvaluatedCheckpoint
from dtrain.parameters.table import VALUES


class Evaluations:
    """Compares what the newest process of the evaluator was given with what was written."""

    def __init__(self, judge: Any) -> None:
        self._judge = judge
        self._written: dict[tuple[int, int], list[tuple[Model, Saved]]] = defaultdict(list)
        self._finals: dict[int, Saved] = {}
        self.begins()

    def written(self, model: Model, saved: Saved) -> None:
        """A checkpoint was written."""
        self._written[saved.generation, saved.version].append((model, saved))
        if saved.final:
            self._finals[saved.generation] = saved

    def begins(self) -> None:
        """A process of the evaluator begins: it knows of no earlier one."""
        self._last: dict[int, tuple[EvaluatedCheckpoint, Saved | None]] = {}
        self._followed: set[int] = set()

    def evaluated(self, fit: int, found: EvaluatedCheckpoint) -> None:
        """The evaluator begins to evaluate a checkpoint."""
        step, demand = found.global_step, self._judge.demand
        before = self._last[fit][0] if fit in self._last else None
        later = before is None or (before.global_step < step and not before.final)
        demand(
            Promise.EVALUATED,
            later,
            f"step {step} of fit {fit} is evaluated after {before and before.global_step}",
        )
        same = [saved for model, saved in self._written[fit, step] if _is_of(found, model, saved)]
        demand(Promise.EVALUATED, same, f"what is evaluated as step {step} of fit {fit} was never written")
        self._last[fit] = found, same[-1] if same else None

    def followed(self, fit: int) -> None:
        """It will evaluate nothing more of a call of `fit`: what was evaluated last is the end, if there is one."""
        self._followed.add(fit)
        if (final := self._finals.get(fit)) is not None:
            found, saved = self._last.get(fit, (None, None))
            last = found is not None and saved is not None and saved.version == final.version
            step = found and found.global_step
            self._judge.demand(
                Promise.EVALUATED,
                last,
                f"step {step} was evaluated last of fit {fit}, which ended with {final.version}",
            )
            same = last and all(
                np.array_equal(mine, its) for mine, its in zip(_values(saved), _values(final), strict=True)
            )
            self._judge.demand(
                Promise.EVALUATED, same, f"other values of fit {fit} were evaluated than its last"
            )

    def check_end(self, ended: bool, failure: str | None) -> None:
        """The run has succeeded, and the evaluator has `ended` by itself, or failed."""
        fits = set(range(1, self._judge.scenario.fits + 1))
        complete = ended and self._followed == fits and fits == self._finals.keys() & self._last.keys()
        text = f"the evaluator has followed {self._followed} of {fits}, and failed: {failure}"
        self._judge.demand(Promise.EVALUATED, complete, text)


def _values(saved: Saved) -> list[Any]:
    return [array for state in saved.states for array in (*state.values, *(t[VALUES] for t in state.tables))]


def _is_of(found: EvaluatedCheckpoint, model: Model, saved: Saved) -> bool:
    whole = model.whole(saved.states)[VALUES]
    return all(np.array_equal(whole[name], array) for name, array in found.weights.items())
