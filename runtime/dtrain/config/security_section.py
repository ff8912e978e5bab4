"""The `security` section: the run's secret, and the files of TLS. docs/reference/spec.md#security."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from dtrain.config.choices import TlsMode
from dtrain.config.problems import Problem
from dtrain.errors import SpecError

INSECURE = "DTRAIN_INSECURE"
TLS_VARIABLES = {"ca_file": "DTRAIN_TLS_CA", "cert_file": "DTRAIN_TLS_CERT", "key_file": "DTRAIN_TLS_KEY"}
"""The variables that give the paths which neither the spec nor an option gives; never their contents."""
_IN_BRACES = re.compile(r"\{(?!role\}|index\})[^}]*\}?")


@dataclass(frozen=True)
class SecuritySection:
    """The proofs that tasks ask of each other.

    Attributes:
        tls: `auto` (where there are certificates, for addresses that are not loopback), `off`, or `required`.
        ca_file: the certificates that every peer's must descend from.
        cert_file: the task's own certificate; `{role}` and `{index}` stand for the task's.
        key_file: the key of that certificate; likewise.
        secret_file: the file with the secret of the run.
        insecure: whether tasks on a network may do without a secret.
    """

    tls: TlsMode = TlsMode.AUTO
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    secret_file: str | None = None
    insecure: bool = False

    def problems(self) -> Iterator[Problem]:
        """Yield the mistakes that types do not exclude."""
        for name in (*TLS_VARIABLES, "secret_file"):
            path = getattr(self, name)
            if path == "":
                yield (name,), 'expected the path of a file, found ""'
            if name in ("cert_file", "key_file") and (wrong := _IN_BRACES.search(path or "")):
                yield (name,), f"expected {{role}} and {{index}} alone in braces, found {wrong[0]}"

    def completed(self, environment: Mapping[str, str]) -> "SecuritySection":
        """Return the section with what the environment says of it where neither the spec nor an option does.

        Raises:
            SpecError: a variable has no such value, or some files of TLS are given and others are not.
        """
        given: dict[str, Any] = {
            name: value
            for name, variable in TLS_VARIABLES.items()
            if getattr(self, name) is None and (value := environment.get(variable))
        }
        insecure = environment.get(INSECURE, "")
        if insecure not in ("", "0", "1"):
            raise SpecError(f"{INSECURE} in the environment: expected 1 or 0, found {insecure!r}")
        section = replace(self, **given, insecure=self.insecure or insecure == "1")
        for path, problem in section.problems():
            raise SpecError(f"{TLS_VARIABLES.get(str(path[0]), path[0])} in the environment: {problem}")
        missing = [name for name in TLS_VARIABLES if getattr(section, name) is None]
        if section.tls != TlsMode.OFF and 0 < len(missing) < len(TLS_VARIABLES):
            remedies = [
                f"--tls-{name.removesuffix('_file')}, {TLS_VARIABLES[name]} or security.{name}"
                for name in missing
            ]
            raise SpecError(
                "security: TLS needs ca_file, cert_file and key_file, found no "
                f"{' and no '.join(missing)}; give {', and '.join(remedies)}"
            )
        return section

    def of_task(self, role: str, index: int | str) -> "SecuritySection":
        """Return the section with the paths of one task's certificate and key."""

        def path(template: str | None) -> str | None:
            return template and template.replace("{role}", role).replace("{index}", str(index))

        return replace(self, cert_file=path(self.cert_file), key_file=path(self.key_file))
