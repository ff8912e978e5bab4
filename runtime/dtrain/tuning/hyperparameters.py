"""The parameters of a trial as Keras Tuner has them: a program asks for each by its name and range."""

from collections.abc import Sequence

from dtrain.errors import SpecError
from dtrain.studies.study_spec import Better, Kind, Parameter, Scalar, Scale, StudySpec, ValueRange


class HyperParameters:
    """The parameters that a function which builds models asks for. See `keras_tuner.HyperParameters`.

    A parameter that a trial is the first to ask for has its default in that trial.

    Attributes:
        values: what has been asked for, by name.
        space: the range or the choices of each.
    """

    def __init__(
        self, space: dict[str, Parameter] | None = None, values: dict[str, Scalar] | None = None
    ) -> None:
        self.space = dict(space or {})
        self.values = dict(values or {})

    def Int(
        self,
        name: str,
        min_value: int,
        max_value: int,
        step: int | None = None,
        sampling: str = "linear",
        default: int | None = None,
    ) -> int:
        """Return a whole number.

        Args:
            name: of the parameter.
            min_value: the lowest value.
            max_value: the highest value, which is included.
            step: values are `min_value` plus multiples of it; with `sampling` ``linear`` alone.
            sampling: ``linear`` or ``log``: on which scale values are equally likely.
            default: the value where nobody has chosen one; None: `min_value`.

        Raises:
            SpecError: the range is wrong, or another one than before.
            ValueError: there is no such sampling.
        """
        asked = ValueRange(min_value, max_value, Kind.INT, Scale(sampling), step)
        return int(self._asked(name, asked, default))

    def Float(
        self,
        name: str,
        min_value: float,
        max_value: float,
        step: float | None = None,
        sampling: str = "linear",
        default: float | None = None,
    ) -> float:
        """Return a number; arguments and errors are those of `Int`.

        Args:
            name: of the parameter.
            min_value: the lowest value.
            max_value: the highest value, which is included.
            step: as in `Int`.
            sampling: as in `Int`.
            default: as in `Int`.
        """
        asked = ValueRange(min_value, max_value, Kind.FLOAT, Scale(sampling), step)
        return float(self._asked(name, asked, default))

    def Choice(
        self, name: str, values: Sequence[Scalar], ordered: bool | None = None, default: Scalar | None = None
    ) -> Scalar:
        """Return one of several values.

        Args:
            name: of the parameter.
            values: numbers, texts or truth values.
            ordered: accepted as in Keras Tuner; samplers do not use it.
            default: the value where nobody has chosen one; None: the first.

        Raises:
            SpecError: there is none, or there were others before.
        """
        return self._asked(name, tuple(values), default)

    def Boolean(self, name: str, default: bool = False) -> bool:
        """Return True or False.

        Args:
            name: of the parameter.
            default: the value where nobody has chosen one.
        """
        return bool(self._asked(name, (False, True), default))

    def Fixed(self, name: str, value: Scalar) -> Scalar:
        """Return a value that stands in the records of the trials, and that no sampler changes.

        Args:
            name: of the parameter.
            value: of it.
        """
        return self._asked(name, (value,), value)

    def get(self, name: str) -> Scalar:
        """Return the value of a parameter that has been asked for.

        Args:
            name: of the parameter.

        Raises:
            SpecError: it has not.
        """
        if name not in self.values:
            raise SpecError(f"hp.get: there is no {name!r}; there are: {', '.join(self.values) or 'none'}")
        return self.values[name]

    def _asked(self, name: str, parameter: Parameter, default: Scalar | None) -> Scalar:
        problems = StudySpec("s", {"m": Better.MAXIMIZE}, {name: parameter}).problems()
        lines = [f"hp: {'.'.join(map(str, path[1:]))}: {text}" for path, text in problems]
        if self.space.setdefault(name, parameter) != parameter:
            lines += [f"hp: {name}: expected {self.space[name]} as before; or name a new study project_name"]
        if lines:
            raise SpecError("\n".join(lines))
        first = parameter.min if isinstance(parameter, ValueRange) else parameter[0]
        return self.values.setdefault(name, first if default is None else default)
