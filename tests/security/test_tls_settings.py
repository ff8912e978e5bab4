"""Whether a task has TLS, and where its certificate comes from."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from dtrain.cluster import ClusterSpec, TaskId
from dtrain.cluster.spec import LeafNames
from dtrain.config import RunSpec, SecuritySection
from dtrain.errors import SpecError
from dtrain.process.assignment import TaskAssignment, run_id_by_hand
from dtrain.process.tensorflow import write_tf_config
from dtrain.process.tls_material import HANDED_OVER
from dtrain.runs.self_report import DAY_S, CertificateLife
from dtrain.wire.security import tls as tls_module
from dtrain.wire.security.credentials import Credentials
from dtrain.wire.security.tls import Tls
from dtrain_cli.certificates.authority import make_authority
from dtrain_cli.launch.launcher import make_authority as used_by_launch
from dtrain_cli.plan.run_plan import RunIdentity

NETWORK = ClusterSpec.from_lists(chief=["machine-a:1"], worker=["machine-a:2"], ps=["machine-b:3"])
LOOPBACK = ClusterSpec.from_lists(chief=["127.0.0.1:1"], worker=["127.0.0.1:2"], ps=["localhost:3"])
AUTHORITY = make_authority("run")


@pytest.fixture(autouse=True)
def nothing_is_mounted(monkeypatch, tmp_path):
    monkeypatch.setattr(tls_module, "MOUNTED", tmp_path / "mounted")


def assignment(task: str, cluster: ClusterSpec = NETWORK, **security) -> TaskAssignment:
    spec = RunSpec(security=SecuritySection(**security))
    return TaskAssignment(TaskId.parse(task), cluster, spec, run_id_by_hand(cluster))


def tls_of(found: TaskAssignment) -> Tls | None:
    return Credentials.of(found, pytest.fail).tls


def put(
    folder: Path, name: str, cluster: ClusterSpec = NETWORK, files=("ca.crt", "tls.crt", "tls.key")
) -> None:
    folder.mkdir(exist_ok=True)
    made = AUTHORITY.issue(LeafNames.of(run_id_by_hand(cluster), name), 30)
    for file, content in zip(files, (made.authorities, made.certificate, made.key), strict=True):
        (folder / file).write_bytes(content)
        (folder / file).chmod(0o600)


def named(folder: Path) -> dict[str, str]:
    end = {"ca_file": "ca.crt", "cert_file": "{role}-{index}.crt", "key_file": "{role}-{index}.key"}
    return {key: str(folder / name) for key, name in end.items()}


def test_without_certificates_auto_is_plaintext_and_required_an_error():
    assert tls_of(assignment("chief:0")) is None
    for cluster in (NETWORK, LOOPBACK):
        with pytest.raises(
            SpecError, match=r"--tls-ca, --tls-cert and --tls-key \(`dtrain certificates SPEC"
        ):
            tls_of(assignment("chief:0", cluster, tls="required"))


def test_auto_is_on_for_a_network_and_required_everywhere(tmp_path):
    put(tmp_path, "chief-0", files=("ca.crt", "chief-0.crt", "chief-0.key"))
    auto = tls_of(assignment("chief:0", **named(tmp_path)))
    assert [auto.covers(address) for address in ("machine-a:1", "10.0.0.1:1", "127.0.0.2:1", "[::1]:1")] == [
        *(True, True),
        *(False, False),
    ]
    required = tls_of(assignment("chief:0", tls="required", **named(tmp_path)))
    assert required.covers("127.0.0.1:1")
    assert tls_of(assignment("chief:0", tls="off", **named(tmp_path))) is None
    assert tls_of(assignment("chief:0", LOOPBACK, **named(tmp_path))) is None


@pytest.mark.parametrize("mode", ["auto", "required"])
def test_a_file_that_is_named_and_cannot_be_read_is_an_error(tmp_path, mode):
    put(tmp_path, "chief-0", files=("ca.crt", "chief-0.crt", "chief-0.key"))
    with pytest.raises(SpecError, match=r"worker-0\.crt: cannot read this file of TLS: No such file"):
        tls_of(assignment("worker:0", tls=mode, **named(tmp_path)))


def test_the_files_of_cert_manager_are_found_where_they_are_mounted(tmp_path):
    put(tmp_path / "mounted", "chief-0")
    assert tls_of(assignment("chief:0")) is not None
    (tmp_path / "mounted" / "ca.crt").unlink()
    with pytest.raises(SpecError, match=r"mounted/ca\.crt: cannot read"):
        tls_of(assignment("chief:0"))


def test_a_worker_that_has_joined_has_the_index_joined(tmp_path):
    put(tmp_path, "worker-joined", files=("ca.crt", "worker-joined.crt", "worker-joined.key"))
    assert tls_of(assignment("worker:5", **named(tmp_path))) is not None


@pytest.mark.parametrize(("name", "cluster"), [("worker-0", NETWORK), ("chief-0", LOOPBACK)])
def test_another_task_s_certificate_and_another_run_s_end_a_task_before_it_connects(tmp_path, name, cluster):
    put(tmp_path, name, cluster, files=("ca.crt", "chief-0.crt", "chief-0.key"))
    with pytest.raises(
        SpecError, match=r"certificate of chief:0 is that of dtrain://.*`dtrain certificates --renew`"
    ):
        tls_of(assignment("chief:0", **named(tmp_path)))


def test_a_certificate_that_a_launcher_hands_over_is_private():
    made = RunIdentity("run", Path("/runs/run"), "a secret of the run", AUTHORITY).certificate("chief-0")
    assert made is not None
    assert used_by_launch is make_authority
    found = replace(assignment("chief:0", LOOPBACK, tls="required"), run_id="run", launched=True, tls=made)
    public = found.to_environment(write_tf_config(found.cluster, found.task))
    assert "PRIVATE" not in repr(found)
    assert not [text for text in public.values() if "PRIVATE" in text or "CERTIFICATE" in text]
    again = TaskAssignment.from_environment(public | found.private)
    assert again.tls == made
    assert tls_of(again).certificates.current().uris == ("dtrain://run/chief/0",)
    with pytest.raises(SpecError, match="DTRAIN_TLS_MATERIAL is not as dtrain writes it"):
        TaskAssignment.from_environment(public | {HANDED_OVER: "{}"})


def test_a_task_warns_once_a_day_from_four_fifths_of_its_certificate_s_life_on():
    life = CertificateLife()
    ends_s = 30 * DAY_S
    warned = [
        (hour / 24, text) for hour in range(0, 32 * 24, 6) if (text := life.due(0.0, ends_s, hour * 3600.0))
    ]
    assert [day for day, _ in warned] == [24, 25, 26, 27, 28, 29, 30, 31]
    assert warned[0][1].startswith(
        "this task's certificate ends in 6.0 days, on 1970-01-31T00:00:00Z: replace its files"
    )
    assert "has expired, and no new connection can be made" in warned[-1][1]
