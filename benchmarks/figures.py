"""What a benchmark says: a figure, beside what was promised and what others reach."""

import hashlib
import json
import os
import platform
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Figure:
    """One measured quantity.

    Attributes:
        runs: its value in each run; their median is the figure.
        promised: as a comparison with the figure, ``>= 1000``; None where nothing is.
        versus: by name, what it stands beside: a limit or a peer. Ratios are figure / other.
        result: what was computed, in a form that does not depend on chance.
        benchmark: the file that measures it.
    """

    name: str
    runs: Sequence[float]
    unit: str
    promised: str | None = None
    versus: dict[str, float] = field(default_factory=dict)
    result: Any = None
    note: str = ""
    benchmark: str = ""

    @property
    def median(self) -> float:
        """The figure."""
        return statistics.median(self.runs)

    @property
    def kept(self) -> bool | None:
        """Whether the promise is; None without one."""
        if self.promised is None:
            return None
        comparison, limit = self.promised.split()
        return self.median >= float(limit) if comparison == ">=" else self.median <= float(limit)

    @property
    def ratios(self) -> dict[str, float]:
        """The figure divided by each of those that it stands beside."""
        return {name: _rounded(self.median / other) for name, other in self.versus.items()}

    def to_json(self) -> str:
        """One line."""
        return json.dumps(
            {
                "name": self.name,
                "benchmark": self.benchmark,
                "figure": _rounded(self.median),
                "unit": self.unit,
                "n": len(self.runs),
                "runs": [_rounded(value) for value in self.runs],
                "promised": self.promised,
                "kept": self.kept,
                "versus": {name: _rounded(other) for name, other in self.versus.items()},
                "ratios": self.ratios,
                "note": self.note,
                "result_hash": hashlib.sha256(json.dumps(self.result).encode()).hexdigest()[:12],
                "measured": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
                "machine": {
                    "cores": os.cpu_count(),
                    "python": platform.python_version(),
                    "load": _rounded(os.getloadavg()[0]),
                },
            }
        )

    def to_row(self) -> str:
        """One line of the table at the end."""
        verdict = {
            None: "",
            True: f"promised {self.promised}: kept",
            False: f"promised {self.promised}: NOT KEPT",
        }[self.kept]
        beside = "; ".join(
            f"{ratio:g} x {name} ({_rounded(self.versus[name]):g})" for name, ratio in self.ratios.items()
        )
        said = ". ".join(part for part in (verdict, beside, self.note) if part)
        return f"{self.name:28} {_rounded(self.median):>9g} {self.unit:8} n={len(self.runs):<3} {said}"


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")
