"""Certificates by the package `cryptography` (extra `dtrain[tls]`): 1 ms each, after 0.2 s of import."""

from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from dtrain.cluster.spec import LeafNames
from dtrain.errors import SpecError
from dtrain.process.tls_material import TlsMaterial

_CLOCKS_APART = timedelta(minutes=5)
"""A certificate is valid from so long ago: another host's clock may be late."""


class Authority:
    """The signer of all certificates of a run."""

    def __init__(self, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
        self._certificate = certificate
        self._key = key

    @classmethod
    def make(cls, name: str, days: int) -> "Authority":
        key = ec.generate_private_key(ec.SECP256R1())
        builder = (
            _builder(name, _named(name), key, days)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage("key_cert_sign", "crl_sign"), critical=True)
        )
        return cls(builder.sign(key, hashes.SHA256()), key)

    @classmethod
    def read(cls, certificate: bytes, key: bytes) -> "Authority":
        try:
            found = load_pem_private_key(key, None)
            authority = x509.load_pem_x509_certificate(certificate)
        except (ValueError, TypeError) as error:
            raise SpecError(f"the authority's certificate and key cannot be read: {error}") from None
        if not isinstance(found, ec.EllipticCurvePrivateKey):
            raise SpecError("the authority's key is on no elliptic curve: it was not made by dtrain")
        return cls(authority, found)

    @property
    def certificate(self) -> bytes:
        """The authority's own certificate, in PEM, which every task trusts."""
        return self._certificate.public_bytes(Encoding.PEM)

    @property
    def key(self) -> bytes:
        """The authority's private key, in PEM, with which anybody is every task of the run."""
        return _pem(self._key)

    def issue(self, names: LeafNames, days: int) -> TlsMaterial:
        key = ec.generate_private_key(ec.SECP256R1())
        others: list[x509.GeneralName] = [x509.DNSName(host) for host in names.hosts]
        others.append(x509.UniformResourceIdentifier(names.uri))
        both = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = (
            _builder(names.task, self._certificate.subject, key, days)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage("digital_signature"), critical=True)
            .add_extension(x509.ExtendedKeyUsage(both), critical=False)
            .add_extension(x509.SubjectAlternativeName(others), critical=False)
            .add_extension(authority, critical=False)
        )
        leaf = builder.sign(self._key, hashes.SHA256())
        return TlsMaterial(self.certificate, leaf.public_bytes(Encoding.PEM), _pem(key))

    def lives(self, days: int) -> bool:
        return self._certificate.not_valid_after_utc >= datetime.now(UTC) + timedelta(days=days)


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _builder(
    name: str, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(_named(name))
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCKS_APART)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


_USAGES = "digital_signature key_cert_sign crl_sign content_commitment key_encipherment data_encipherment"
_OF_AGREED_KEYS = "key_agreement encipher_only decipher_only"


def _usage(*allowed: str) -> x509.KeyUsage:
    return x509.KeyUsage(**{name: name in allowed for name in f"{_USAGES} {_OF_AGREED_KEYS}".split()})


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
