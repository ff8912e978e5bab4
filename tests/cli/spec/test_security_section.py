"""The `security` section: options before the spec before the environment; half of TLS is refused."""

import pytest

from dtrain.config import SecuritySection
from dtrain.errors import SpecError
from dtrain_cli.spec import read_spec

CLUSTER = "cluster: {worker: 2, ps: 1}\n"
TLS = {"DTRAIN_TLS_CA": "ca", "DTRAIN_TLS_CERT": "{role}-{index}.crt", "DTRAIN_TLS_KEY": "{role}-{index}.key"}


@pytest.fixture
def spec(tmp_path):
    def write(text: str):
        path = tmp_path / "spec.yaml"
        path.write_text(CLUSTER + text)
        return path

    return write


def refused(make) -> str:
    with pytest.raises(SpecError) as caught:
        make()
    return str(caught.value)


def test_an_option_wins_over_the_spec_and_the_spec_over_the_environment(spec):
    path = spec("security: {tls: required, ca_file: of-spec, cert_file: of-spec}\n")
    found = read_spec(path, shortcuts={"tls_ca": "of-option", "insecure": None}).secured(TLS).security
    assert (found.ca_file, found.cert_file, found.key_file) == ("of-option", "of-spec", "{role}-{index}.key")
    assert (found.tls, found.insecure) == ("required", False)
    assert read_spec(path, ["security.ca_file=x"], {"tls_ca": "of-option"}).security.ca_file == "x"


@pytest.mark.parametrize(("value", "insecure"), [("1", True), ("0", False), ("", False)])
def test_the_environment_may_call_a_network_trusted(value, insecure):
    assert SecuritySection().completed({"DTRAIN_INSECURE": value}).insecure is insecure
    assert SecuritySection(insecure=True).completed({"DTRAIN_INSECURE": value}).insecure
    assert read_spec(None, shortcuts={"insecure": True}).security.insecure is True


def test_half_of_tls_is_refused_with_what_is_missing(spec):
    read = read_spec(spec("security: {ca_file: ca, key_file: key}\n"))
    assert refused(lambda: read.secured({})) == (
        "security: TLS needs ca_file, cert_file and key_file, found no cert_file; "
        "give --tls-cert, DTRAIN_TLS_CERT or security.cert_file"
    )
    one = read_spec(spec("security: {cert_file: cert}\n"))
    assert refused(lambda: one.secured({})).endswith(
        "found no ca_file and no key_file; give --tls-ca, DTRAIN_TLS_CA or security.ca_file, "
        "and --tls-key, DTRAIN_TLS_KEY or security.key_file"
    )
    assert read.secured(TLS).security.ca_file == "ca"
    assert read_spec(spec("security: {tls: off, ca_file: ca}\n")).secured({}).security.tls == "off"


def test_each_mistake_names_its_place(spec):
    path = spec("security:\n  tls: on\n  cert_file: '{rolle}.crt'\n  ca_file: ''\n  cafile: x\n  secret: y\n")
    assert refused(lambda: read_spec(path)).replace(f"{path}:", "").splitlines() == [
        '3:3: security.tls: expected auto, off or required, found "on"',
        "4:3: security.cert_file: expected {role} and {index} alone in braces, found {rolle}",
        '5:3: security.ca_file: expected the path of a file, found ""',
        "6:3: security.cafile: unknown key; did you mean ca_file?",
        "7:3: security.secret: unknown key; did you mean secret_file?",
    ]
    wrong = {**TLS, "DTRAIN_TLS_KEY": "{x"}
    assert refused(lambda: SecuritySection().completed(wrong)).startswith("DTRAIN_TLS_KEY in the environment")
    assert "expected 1 or 0, found 'yes'" in refused(
        lambda: SecuritySection().completed({"DTRAIN_INSECURE": "yes"})
    )


def test_a_key_that_stands_above_its_section_is_told_where_it_belongs(spec):
    path = spec("secret_file: secret.txt\nseed: 3\n")
    assert refused(lambda: read_spec(path)).splitlines() == [
        f"{path}:2:1: secret_file: unknown key; did you mean security.secret_file?",
        f"{path}:3:1: seed: unknown key; did you mean training.seed or simulate.seed?",
    ]


def test_a_task_has_a_certificate_of_its_own():
    found = SecuritySection().completed(TLS).of_task("worker", 1)
    assert (found.ca_file, found.cert_file, found.key_file) == ("ca", "worker-1.crt", "worker-1.key")
