"""Manifests of Kubernetes: what people review, what its API accepts, and rules that no schema knows."""

import base64
import io
import json
import os
import re
import tarfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from row_by_row import NIGHT
from ruamel.yaml import YAML

from dtrain.cluster import Role
from dtrain.errors import SpecError
from dtrain_cli.code import pack
from dtrain_cli.launch.kubernetes import about, gather
from dtrain_cli.launch.options import LaunchOptions
from dtrain_cli.plan.standalone_start import StandaloneStart
from dtrain_cli.spec import read_spec
from dtrain_cli.targets.kubernetes.manifests import json_text, manifests, yaml_text
from dtrain_cli.targets.kubernetes.run import LIMIT_BYTES, NAME_MAX, Code, KubernetesRun, object_name

GOLDEN = Path(__file__).parent / "golden"
VERSIONS = ("1.31", "1.34", "1.37")
CLUSTER = "name: digits\ncluster: {chief: 1, worker: 3, ps: 2, evaluator: 1}\ntraining: {updates: sync}\n"
SPECS = {
    "jobs": CLUSTER + "kubernetes: {image: 'registry/team/dtrain:1'}\n",
    "jobset": CLUSTER
    + "checkpoint: {remote: 's3://bucket/run'}\nenvironment: {MODE: 'yes'}\nsecrets: [AWS_SECRET_ACCESS_KEY]\n"
    + "wait: {start_s: 120}\nrestart: {worker: {policy: never}}\n"
    + "kubernetes: {image: 'x:1', namespace: ml, queue: training,"
    + " resources: {worker: {cpu: 4, memory: 8Gi, nvidia.com/gpu: 1}, ps: {cpu: 500m}},"
    + " volume: {claim: runs, access: ReadWriteMany}}\n",
    "replicas": "name: digits\ncluster: {worker: 2}\ntraining: {strategy: multi_worker_mirrored}\n"
    "kubernetes: {image: 'x:1', secret: mine, code_in: /app, volume: {access: ReadWriteMany, size: 1Gi}}\n",
}


def run_of(name: str, tmp_path: Path, foreign: bool = False) -> KubernetesRun:
    spec = tmp_path / f"{name}.yaml"
    spec.write_text(SPECS[name])
    (tmp_path / "p.py").write_text("import dtrain\n\nprint(1)\n")
    code = Code("/app") if name == "replicas" else Code(archive=pack(tmp_path, ["p.py"]))
    program = f"{code.folder}/p.py" if code.folder else "p.py"
    command = ("--", "python", "p.py") if foreign else (program, "--path", "$HOME", "5")
    secret = None if name == "replicas" else "a-secret-of-enough-characters"
    secrets = {"AWS_SECRET_ACCESS_KEY": "on"} if name == "jobset" else {}
    return KubernetesRun(
        "digits-x7k2p", read_spec(spec, trains=not foreign, foreign=foreign), code, command, secret, secrets
    )


@pytest.mark.parametrize("name", SPECS)
def test_manifests_are_as_reviewed(name, tmp_path):
    text = yaml_text(manifests(run_of(name, tmp_path)))
    golden = GOLDEN / f"{name}.yaml"
    if os.environ.get("DTRAIN_WRITE_GOLDEN"):
        golden.write_text(text)
    assert text == golden.read_text()


@pytest.mark.parametrize(("name", "foreign"), [("jobs", False), ("jobset", True), ("replicas", False)])
def test_the_text_says_what_the_objects_say_in_yaml_1_1_too(name, foreign, tmp_path):
    objects = manifests(run_of(name, tmp_path, foreign))
    for version in ((1, 1), (1, 2)):
        reader = YAML(typ="safe", pure=True)
        reader.version = version
        assert list(reader.load_all(yaml_text(objects))) == objects
    assert json.loads(json_text(objects))["items"] == objects


@settings(max_examples=100 if NIGHT else 30)  # each is parsed by a reader in Python
@given(
    st.text(max_size=40)
    | st.sampled_from(["yes", "12:30", "1e3", "~", "- a", "a: b", "x\n y\n", " \n", "\tb\nc "])
)
def test_any_text_survives_yaml(text):
    objects = [{"a": text, "b": [text, {"c": text}]}]
    reader = YAML(typ="safe", pure=True)
    assert list(reader.load_all(yaml_text(objects))) == objects


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", SPECS)
def test_the_schemas_of_kubernetes_accept_them(name, version, tmp_path):
    validate = pytest.importorskip(
        "kubernetes_validate", reason="needs the package kubernetes-validate"
    ).validate
    for each in manifests(run_of(name, tmp_path)):
        if each["kind"] != "JobSet":
            validate(each, version, strict=True)
            continue
        for part in each["spec"]["replicatedJobs"]:
            job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": part["name"]}}
            validate({**job, "spec": part["template"]["spec"]}, version, strict=True)


def test_the_schema_of_jobset_accepts_it(tmp_path):
    jsonschema = pytest.importorskip("jsonschema", reason="needs the package jsonschema")
    file = os.environ.get("DTRAIN_JOBSET_CRD")
    if file is None:
        pytest.skip(
            "DTRAIN_JOBSET_CRD names no jobset.x-k8s.io_jobsets.yaml of github.com/kubernetes-sigs/jobset"
        )
    definition = YAML(typ="safe").load(Path(file))
    schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    _make_strict(schema)
    schema["properties"]["metadata"] = {"type": "object"}
    jobset = manifests(run_of("jobset", tmp_path))[-1]
    assert jobset["kind"] == "JobSet"
    assert list(jsonschema.Draft202012Validator(schema).iter_errors(jobset)) == []


def _make_strict(schema):
    if isinstance(schema, dict):
        if schema.get("type") == "object" and "properties" in schema:
            schema.setdefault("additionalProperties", False)
        if schema.get("x-kubernetes-int-or-string"):
            schema.pop("type", None)
        for each in list(schema.values()):
            _make_strict(each)
    elif isinstance(schema, list):
        for each in schema:
            _make_strict(each)


def jobs_of(objects):
    for each in objects:
        if each["kind"] == "Job":
            yield each["metadata"]["name"], each["spec"]
        elif each["kind"] == "JobSet":
            for part in each["spec"]["replicatedJobs"]:
                yield f"{each['metadata']['name']}-{part['name']}-0", part["template"]["spec"]


@pytest.mark.parametrize("foreign", [False, True])
@pytest.mark.parametrize("name", SPECS)
def test_rules_that_no_schema_knows(name, foreign, tmp_path):
    objects = manifests(run_of(name, tmp_path, foreign))
    names = {(each["kind"], each["metadata"]["name"]) for each in objects}
    for job_name, job in jobs_of(objects):
        pod = job["template"]["spec"]
        container = pod["containers"][0]
        assert len(f"{job_name}-{job['completions'] - 1}-abcde") <= 63
        assert job["completions"] == job["parallelism"]
        # A podFailurePolicy needs restartPolicy Never, and FailIndex needs backoffLimitPerIndex.
        assert pod["restartPolicy"] == "Never"
        assert job["backoffLimitPerIndex"] >= 0
        assert "backoffLimit" not in job
        rules = job["podFailurePolicy"]["rules"]
        assert rules[0]["action"] == "Ignore", "a disruption comes first: the first rule that fits decides"
        assert 143 not in rules[1]["onExitCodes"]["values"]
        assert {1, 127, 255} <= set(rules[1]["onExitCodes"]["values"])
        assert rules[1]["onExitCodes"]["values"] == sorted(rules[1]["onExitCodes"]["values"])
        assert pod["enableServiceLinks"] is False
        volumes = [each["name"] for each in pod["volumes"]]
        assert (
            sorted(volumes)
            == sorted(set(volumes))
            == sorted(each["name"] for each in container["volumeMounts"])
        )
        paths = [each["mountPath"] for each in container["volumeMounts"]]
        assert not [(a, b) for a in paths for b in paths if a != b and f"{b}/".startswith(f"{a}/")], (
            "no mount below a mount"
        )
        if ("Service", pod["subdomain"]) not in names:
            assert ("JobSet", pod["subdomain"]) in names
        for each in pod["volumes"]:
            if "configMap" in each:
                assert ("ConfigMap", each["configMap"]["name"]) in names


def pods_of(tmp_path, pod):
    run = plan_of(tmp_path, SPECS["jobs"].replace("1'}", f"1', pod: {pod}}}"))
    return dict(zip(run.roles, (job["template"] for _, job in jobs_of(manifests(run))), strict=True))


def test_what_a_site_says_of_pods_is_merged_into_each_roles_template(tmp_path):
    before = pods_of(tmp_path, "{}")
    found = pods_of(
        tmp_path,
        "{metadata: {annotations: {sidecar.istio.io/inject: 'false'}}, spec: {nodeSelector: {pool: big},"
        " tolerations: [{key: gpu, operator: Exists}, {key: node.kubernetes.io/not-ready, tolerationSeconds: 5}],"
        " securityContext: {runAsUser: null}, imagePullSecrets: [{name: mine}],"
        " volumes: [{name: data, hostPath: {path: /data}}, {name: tmp, emptyDir: {sizeLimit: 1Gi}}],"
        " containers: [{name: dtrain, imagePullPolicy: Always, env: [{name: HOME, value: /home/me}],"
        " volumeMounts: [{mountPath: /data, name: data}]}, {name: beside, image: y}]},"
        " worker: {spec: {priorityClassName: high}}}",
    )
    for role, template in found.items():
        pod, container = template["spec"], template["spec"]["containers"][0]
        was = before[role]["spec"]
        assert template["metadata"]["annotations"] == {"sidecar.istio.io/inject": "false"}
        assert template["metadata"]["labels"]["dtrain.dev/role"] == role
        assert pod["nodeSelector"] == {"pool": "big"}
        assert {each["key"]: each.get("tolerationSeconds") for each in pod["tolerations"]} == {
            "node.kubernetes.io/unreachable": 30, "node.kubernetes.io/not-ready": 5, "gpu": None,
        }  # fmt: skip
        assert "runAsUser" not in pod["securityContext"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        volumes = {each["name"]: each for each in pod["volumes"]}
        assert volumes["tmp"]["emptyDir"] == {"sizeLimit": "1Gi"}
        assert volumes.keys() == {each["name"] for each in was["volumes"]} | {"data"}
        assert [each["name"] for each in pod["containers"]] == ["dtrain", "beside"]
        assert container["imagePullPolicy"] == "Always"
        assert {each["name"]: each.get("value") for each in container["env"]}["HOME"] == "/home/me"
        assert len(container["env"]) == len(was["containers"][0]["env"])
        assert len(container["volumeMounts"]) == len(was["containers"][0]["volumeMounts"]) + 1
        assert pod.get("priorityClassName") == ("high" if role is Role.WORKER else None)


def test_any_resource_is_requested_and_all_but_cores_are_limits(tmp_path):
    for _, job in jobs_of(manifests(run_of("jobset", tmp_path))):
        template = job["template"]
        found = template["spec"]["containers"][0]["resources"]
        if template["metadata"]["labels"]["dtrain.dev/role"] == "worker":
            assert found["requests"]["nvidia.com/gpu"] == found["limits"]["nvidia.com/gpu"] == "1"
        assert found["requests"].keys() - found["limits"].keys() == {"cpu"}
        assert "ephemeral-storage" in found["limits"]


@pytest.mark.parametrize("name", SPECS)
def test_pods_write_where_a_limit_is_and_are_reached_by_each_other_alone(name, tmp_path):
    objects = manifests(run_of(name, tmp_path))
    policy = next(each["spec"] for each in objects if each["kind"] == "NetworkPolicy")
    labels = policy["podSelector"]["matchLabels"]
    assert policy["ingress"] == [{"from": [{"podSelector": {"matchLabels": labels}}]}]
    for _, job in jobs_of(objects):
        pod = job["template"]["spec"]
        assert labels.items() <= job["template"]["metadata"]["labels"].items()
        assert pod["containers"][0]["securityContext"]["readOnlyRootFilesystem"] is True
        empty = {each["name"]: each["emptyDir"] for each in pod["volumes"] if "emptyDir" in each}
        assert all(each["sizeLimit"] for each in empty.values())
        mounts = {each["mountPath"]: each["name"] for each in pod["containers"][0]["volumeMounts"]}
        assert empty[mounts["/dev/shm"]]["medium"] == "Memory"
        assert mounts["/tmp"] in empty
        assert mounts["/dtrain/work"] in empty


@pytest.mark.parametrize("foreign", [False, True])
@pytest.mark.parametrize("name", SPECS)
def test_each_pod_finds_its_place_in_what_it_is_given(name, foreign, tmp_path):
    run = run_of(name, tmp_path, foreign)
    objects = manifests(run)
    spec = tmp_path / "pod.json"
    spec.write_text(objects[0]["data"]["spec.json"])
    places = set()
    for job_name, job in jobs_of(objects):
        container = job["template"]["spec"]["containers"][0]
        environment = {
            each["name"]: each.get("value", "a-secret-of-enough-characters") for each in container["env"]
        }
        for index in range(job["completions"]):
            start = StandaloneStart(None, spec=spec, foreign=foreign)
            found = start.assignment({**environment, "JOB_COMPLETION_INDEX": str(index)})
            places.add(str(found.task))
            assert found.cluster == run.addresses
            assert found.spec.training == run.spec.training
            assert found.spec.checkpoint == run.spec.checkpoint
            if found.task.role is not Role.EVALUATOR:
                assert found.address == f"{job_name}-{index}.{job['template']['spec']['subdomain']}:2222"
    assert len(places) == sum(run.spec.cluster.count(role) for role in Role)


def test_patience_outlasts_the_loss_of_a_node_unless_the_spec_says_another(tmp_path):
    """40 s until a node counts as silent, the tolerations, and the grace of its pods."""
    for _, job in jobs_of(manifests(run_of("jobs", tmp_path))):
        pod = job["template"]["spec"]
        tolerated = {each["key"].partition("/")[2]: each["tolerationSeconds"] for each in pod["tolerations"]}
        assert tolerated == {"unreachable": 30, "not-ready": 30}
        assert 40 + 30 + pod["terminationGracePeriodSeconds"] < 600 / 2
    found = [
        json.loads(manifests(run_of(name, tmp_path))[0]["data"]["spec.json"])["wait"]
        for name in ("jobs", "jobset")
    ]
    assert [(each["start_s"], each["server_s"]) for each in found] == [(600.0, 600.0), (120.0, 600.0)]


def test_a_foreign_command_gets_no_secret_of_the_run_and_its_servers_are_ended(tmp_path):
    objects = manifests(run_of("jobs", tmp_path, foreign=True))
    assert "a-secret-of-enough-characters" not in json.dumps(objects)
    assert objects[-1]["kind"] == "JobSet"
    assert not [each for each in objects if each["kind"] == "Secret"]
    assert objects[-1]["spec"]["successPolicy"]["targetReplicatedJobs"] == ["chief"]


@given(st.text(max_size=120), st.sampled_from(["ab12c", "z"]))
def test_names_are_those_of_services_and_leave_room(name, suffix):
    found = object_name(name, suffix)
    assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", found)
    assert len(found) <= NAME_MAX
    assert found.endswith(f"-{suffix}")


def plan_of(tmp_path, text, program="print(1)\n", environment=None, **options):
    (tmp_path / "p.py").write_text(program)
    (tmp_path / "s.yaml").write_text(text)
    return gather(
        LaunchOptions(
            spec=tmp_path / "s.yaml", shortcuts={"on": "kubernetes"}, program=tmp_path / "p.py", **options
        ),
        environment or {},
    )


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (CLUSTER, "kubernetes.image: expected the image"),
        ("cluster: {chief: [a:1], ps: [b:1]}\nkubernetes: {image: x}\n", "cluster.chief: expected a count"),
        (CLUSTER + "kubernetes: {image: x}\nsimulate: {kill: [{task: 'worker:1', at_step: 2}]}\n", "only a launcher"),
        (CLUSTER + "kubernetes: {image: x}\nsecrets: [NOT_THERE]\n", "NOT_THERE is not set .* kubernetes.secret"),
        (CLUSTER + "kubernetes: {image: x, queue: A_B}\n", "kubernetes.queue: expected small letters"),
        (CLUSTER + "kubernetes: {image: x, resources: {ps: {memory: 8GB}}}\n", "resources.ps.memory: expected a quantity above 0"),
        (CLUSTER + "kubernetes: {image: x, resources: {ps: {'g pu': 1}}}\n", "resources.ps.g pu: expected a resource"),
        (CLUSTER + "kubernetes: {image: x, pod: {nodeSelector: {a: b}}}\n", "kubernetes.pod: expected the fields of a pod's template"),
        (CLUSTER + "kubernetes: {image: x, resources: {master: {cpu: 1}}}\n", "resources.master: unknown key"),
        (CLUSTER + "kubernetes: {image: x, jobset: maybe}\n", "kubernetes.jobset: expected"),
        ("cluster: {worker: 2, ps: 1}\nkubernetes: {image: x}\n", "volume.access: without a chief"),
    ],
)  # fmt: skip
def test_what_cannot_run_there_is_refused_in_a_sentence(tmp_path, text, what):
    with pytest.raises(SpecError, match=what):
        plan_of(tmp_path, text)


def test_code_above_the_limit_is_refused_with_the_biggest_files(tmp_path):
    with pytest.raises(
        SpecError, match=r"a ConfigMap holds 900000; the biggest: p\.py .*kubernetes\.code_in"
    ):
        manifests(plan_of(tmp_path, SPECS["jobs"], program=f"# {os.urandom(LIMIT_BYTES).hex()}"))


def test_a_folder_of_code_travels_with_its_folders_and_bytes(tmp_path, monkeypatch):
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "mod.py").write_text("X = 1\r\n")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "x.bin").write_bytes(b"\xff")
    run = plan_of(tmp_path, SPECS["jobs"] + f"code: {{from: '{tmp_path}', exclude: [data/]}}\n")
    assert sorted(run.code.files) == ["p.py", "pkg/mod.py", "s.yaml"]
    assert run.command == ("p.py",)
    (packed,) = manifests(run)[0]["binaryData"].values()
    with tarfile.open(fileobj=io.BytesIO(base64.b64decode(packed))) as tar:
        assert tar.extractfile("pkg/mod.py").read() == b"X = 1\r\n"


def test_certificates_are_one_a_task_and_a_role_sees_its_own(tmp_path):
    pytest.importorskip("cryptography", reason="makes certificates")
    run = plan_of(tmp_path, SPECS["jobs"] + "security: {tls: required}\n")
    objects = {each["kind"]: each for each in manifests(run) if each["kind"] != "Job"}
    assert {"ca.crt", "ps-1.key", "evaluator-0.crt"} <= objects["Secret"]["stringData"].keys()
    for role, job in zip(run.roles, [job for _, job in jobs_of(manifests(run))], strict=True):
        tls = next(each["secret"] for each in job["template"]["spec"]["volumes"] if each["name"] == "tls")
        assert {item["key"].split("-")[0] for item in tls["items"]} == {"ca.crt", role}
    security = json.loads(objects["ConfigMap"]["data"]["spec.json"])["security"]
    assert security["tls"] == "required"
    assert security["key_file"] == "/etc/dtrain/tls/{role}-{index}.key"


def test_the_plan_for_people_names_pods_disk_and_commands(tmp_path):
    lines = list(about(run_of("jobset", tmp_path)))
    text = "\n".join(lines)
    assert "worker: digits-x7k2p-worker-0-0.digits-x7k2p ... 2, port 2222; cpu 4" in text
    assert "waits in Kueue's queue training" in text
    assert "kubectl -n ml logs -f" in text
    assert all(len(line) <= 120 for line in lines)


def test_a_command_whose_files_are_in_the_image_is_planned_without_code(tmp_path):
    (tmp_path / "s.yaml").write_text("cluster: {chief: 1, worker: 1}\nkubernetes: {image: x}\n")
    command = ("python", "/app/train.py")
    run = gather(LaunchOptions(spec=tmp_path / "s.yaml", arguments=command), {})
    assert "  code: none; the image holds what is needed" in about(run)
    for _, job in jobs_of(manifests(run)):
        assert "--code" not in job["template"]["spec"]["containers"][0]["args"]
