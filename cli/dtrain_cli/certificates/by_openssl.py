"""Certificates by the command `openssl`: about 30 ms each, and keys in memory alone all the same."""

import contextlib
import os
import secrets
import subprocess
from dataclasses import dataclass

from dtrain.errors import SpecError
from dtrain.process.tls_material import TlsMaterial
from dtrain_cli.certificates.leaf_names import LeafNames

_DAY_S = 24 * 3600
_REQUEST = """
[req]
distinguished_name = name
prompt = no
x509_extensions = authority
[name]
CN = {name}
[authority]
basicConstraints = critical, CA:TRUE, pathlen:0
keyUsage = critical, keyCertSign, cRLSign
subjectKeyIdentifier = hash
"""
_LEAF = """
[leaf]
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
extendedKeyUsage = serverAuth, clientAuth
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
subjectAltName = {names}
"""


@dataclass(frozen=True)
class OpensslAuthority:
    """See `Authority`."""

    certificate: bytes
    key: bytes

    @classmethod
    def make(cls, name: str, days: int) -> "OpensslAuthority":
        """Make a new one, which signs leaves and nothing else."""
        key = _new_key()
        made = _openssl(
            *("req", "-x509", "-new", "-sha256", "-days", str(days)),
            **{"-key": key, "-config": _REQUEST.format(name=name).encode()},
        )
        return cls(made, key)

    def issue(self, names: LeafNames, days: int) -> TlsMaterial:
        """See `Authority.issue`."""
        key = _new_key()
        wish = _openssl(
            *("req", "-new", "-sha256"), **{"-key": key, "-config": _REQUEST.format(name=names.task).encode()}
        )
        text = ", ".join([*(f"DNS:{host}" for host in names.hosts), f"URI:{names.uri}"])
        serial = f"0x{secrets.randbits(128):x}"
        leaf = _openssl(
            *("x509", "-req", "-sha256", "-days", str(days), "-set_serial", serial, "-extensions", "leaf"),
            **{
                "-in": wish,
                "-CA": self.certificate,
                "-CAkey": self.key,
                "-extfile": _LEAF.format(names=text).encode(),
            },
        )
        return TlsMaterial(self.certificate, leaf, key)

    def lives(self, days: int) -> bool:
        """See `Authority.lives`."""
        try:
            _openssl("x509", "-noout", "-checkend", str(days * _DAY_S), **{"-in": self.certificate})
        except SpecError:
            return False
        return True


def _new_key() -> bytes:
    return _openssl("genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256")


def _openssl(*arguments: str, **files: bytes) -> bytes:
    """Run openssl; each of `files` is an option and what the file holds that it names, which is on no disk.

    Raises:
        SpecError: it failed, or cannot be executed.
    """
    with contextlib.ExitStack() as stack:
        words = ["openssl", *arguments]
        fds = []
        for option, content in files.items():
            file = stack.enter_context(os.fdopen(os.memfd_create("dtrain"), "wb"))
            file.write(content)
            file.flush()
            fds.append(file.fileno())
            words += [option, f"/proc/self/fd/{file.fileno()}"]
        try:
            done = subprocess.run(words, pass_fds=fds, capture_output=True, check=False)
        except OSError as error:
            raise SpecError(f"openssl cannot be executed: {error.strerror}") from None
    if done.returncode != 0:
        lines = done.stderr.decode(errors="replace").strip().splitlines() or ["no message"]
        raise SpecError(f"openssl {arguments[0]} failed: {lines[-1]}")
    return done.stdout
