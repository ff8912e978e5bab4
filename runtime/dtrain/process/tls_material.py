"""The certificate of a task with all that belongs to it, as files hold it or a launcher hands it over."""

from dataclasses import dataclass, field

import msgspec

from dtrain.errors import SpecError

HANDED_OVER = "DTRAIN_TLS_MATERIAL"
"""The private variable (`process.private_variables`) in which a launcher hands it over."""


@dataclass(frozen=True)
class TlsMaterial:
    """A certificate and all that belongs to it, in PEM.

    Attributes:
        authorities: one or several certificates, of which each peer's must descend from one.
        certificate: the task's own, and those between it and an authority.
        key: its private key.
    """

    authorities: bytes
    certificate: bytes
    key: bytes = field(repr=False)

    def to_text(self) -> str:
        """Return the text that `from_text` reads."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_text(cls, text: str) -> "TlsMaterial":
        """Read what a launcher has handed over.

        Raises:
            SpecError: it is not as a launcher writes it.
        """
        try:
            return msgspec.json.decode(text, type=cls)
        except msgspec.DecodeError as error:
            raise SpecError(f"{HANDED_OVER} is not as dtrain writes it: {error}") from None
