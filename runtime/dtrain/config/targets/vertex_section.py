"""The `vertex` section. docs/reference/spec.md#vertex."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from dtrain.config.problems import Problem

RoleName = Literal["chief", "worker", "ps", "evaluator"]
MACHINE = "n1-standard-4"


@dataclass(frozen=True)
class VertexSection:
    """The image and machines of a custom job of Vertex AI.

    Attributes:
        image: holds Python, dtrain of this version, the program and what it imports.
        code_in: the folder of the image that holds the program.
        machines: the type of machine of each role; without one, `MACHINE`.
    """

    image: str | None = None
    code_in: str = "/app"
    machines: dict[RoleName, str] = field(default_factory=dict)

    def machine_of(self, role: str) -> str:
        """Return the type of machine of a role's tasks."""
        given: dict[str, str] = dict(self.machines.items())
        return given.get(role, MACHINE)

    def problems(self) -> Iterator[Problem]:
        """Yield the mistakes that types do not exclude."""
        if self.image is not None and (not self.image or any(map(str.isspace, self.image))):
            yield (
                ("image",),
                f"expected an image such as region-docker.pkg.dev/p/r/i:1, found {self.image[:60]!r}",
            )
        if not self.code_in.startswith("/"):
            yield ("code_in",), f"expected a folder of the image such as /app, found {self.code_in[:60]!r}"
