"""One task by hand: flags before spec before TF_CONFIG; contradictions are refused."""

import json

import pytest

from dtrain.cluster import ClusterSpec, Role, TaskId
from dtrain.config import SingleSection, SyncSection
from dtrain.errors import SpecError
from dtrain.process.tensorflow import write_tf_config
from dtrain_cli.plan.standalone_start import StandaloneStart

HOSTS = "cluster: {chief: [a:1], worker: [a:2, b:2], ps: [b:3], evaluator: 1}\ntraining: {updates: sync}\n"
HOSTS += "security: {insecure: true}\n"
TF_CONFIG = {
    "TF_CONFIG": write_tf_config(ClusterSpec.from_lists(worker=["x:1", "x:2"]), TaskId.parse("worker:1")),
    "DTRAIN_INSECURE": "1",
}
FLAGS = ("--worker_hosts", "y:1,y:2", "--task_index=1")


@pytest.fixture
def spec(tmp_path):
    path = tmp_path / "spec.yaml"
    path.write_text(HOSTS)
    return path


def refused(start: StandaloneStart, environment=None) -> str:
    with pytest.raises(SpecError) as caught:
        start.assignment(environment or {})
    return str(caught.value)


def test_a_spec_with_addresses_says_it_all(spec, tmp_path):
    found = StandaloneStart(Role.WORKER, index=1, spec=spec, run_dir=tmp_path).assignment({})
    assert (str(found.task), found.cluster.address(found.task)) == ("worker:1", "b:2")
    assert found.spec.training.updates == "sync"
    assert (found.run_dir, found.launched, found.run_id) == (tmp_path, False, f"hand-{found.cluster.hash}")
    assert found.cluster.to_dict() == {"chief": ["a:1"], "worker": ["a:2", "b:2"], "ps": ["b:3"]}


def test_the_evaluator_has_a_place_outside_the_cluster(spec):
    found = StandaloneStart(Role.EVALUATOR, spec=spec).assignment({})
    assert str(found.task) == "evaluator:0"
    assert found.task not in found.cluster


def test_every_task_started_by_hand_gets_the_same_run_id(spec):
    starts = [
        StandaloneStart(Role.CHIEF, spec=spec),
        StandaloneStart(Role.PS, spec=spec),
        StandaloneStart(Role.WORKER, index=0, spec=spec),
    ]
    assert len({start.assignment({}).run_id for start in starts}) == 1


def test_tf_config_gives_the_place_and_the_spec_the_rest(tmp_path):
    path = tmp_path / "spec.yaml"
    path.write_text("cluster: {worker: 7}\ntraining: {updates: sync}\n")
    found = StandaloneStart(Role.WORKER, spec=path, sets=("training.seed=3",)).assignment(TF_CONFIG)
    assert str(found.task) == "worker:1"
    assert (found.spec.cluster.worker, found.spec.training.updates, found.spec.training.seed) == (
        2,
        "sync",
        3,
    )


def test_flags_are_stronger_than_tf_config_and_may_stand_among_the_programs_arguments():
    found = StandaloneStart(Role.WORKER, flags=("--lr", "1", *FLAGS)).assignment(TF_CONFIG)
    assert found.cluster.address(found.task) == "y:2"


def test_a_set_alone_changes_the_spec_of_a_place_from_elsewhere():
    found = StandaloneStart(Role.WORKER, sets=("training.updates=sync",), flags=FLAGS).assignment(
        {"DTRAIN_INSECURE": "1"}
    )
    assert (found.spec.training.updates, found.spec.cluster.worker, found.spec.cluster.evaluator) == (
        "sync",
        2,
        0,
    )


def test_what_a_launcher_says_is_kept():
    environment = {
        **TF_CONFIG,
        "DTRAIN_RUN_ID": "r",
        "DTRAIN_SECRET": "the secret of a run",
        "DTRAIN_ATTEMPT": "2",
    }
    found = StandaloneStart(Role.WORKER).assignment(environment)
    assert (found.run_id, found.launched, found.secret, found.attempt) == (
        "r",
        True,
        "the secret of a run",
        2,
    )


def test_the_secret_comes_from_the_file_then_the_spec_then_the_environment(spec, tmp_path):
    first, second, third = (f"the {number} secret of a run" for number in ("first", "second", "third"))
    for name, text in (("one", f"{first}\n"), ("two", f"{second}\n")):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o600)
    start = StandaloneStart(Role.CHIEF, spec=spec, sets=(f"security.secret_file={tmp_path / 'two'}",))
    assert start.assignment({"DTRAIN_SECRET": third}).secret == second
    one = StandaloneStart(Role.CHIEF, spec=spec, shortcuts={"secret_file": str(tmp_path / "one")})
    assert one.assignment({}).secret == first
    assert StandaloneStart(Role.CHIEF, spec=spec).assignment({"DTRAIN_SECRET": third}).secret == third
    (tmp_path / "one").write_text("\n")
    assert refused(one).endswith("expected the run's secret, found an empty file")
    assert "cannot read the secret" in refused(
        StandaloneStart(Role.CHIEF, spec=spec, shortcuts={"secret_file": str(tmp_path / "three")})
    )


def test_contradictions_and_gaps_are_refused(spec, tmp_path):
    counts = tmp_path / "counts.yaml"
    counts.write_text("cluster: {worker: 2}\n")
    assert refused(StandaloneStart(Role.WORKER)).startswith(
        "nothing says which worker this is, and of which cluster; expected --spec SPEC"
    )
    assert refused(StandaloneStart(Role.WORKER, spec=counts)).startswith(
        f"{counts} gives counts, which `launch` turns into"
    )
    assert refused(StandaloneStart(Role.WORKER, spec=spec)).endswith(
        "has 2 tasks worker; say which by --index I"
    )
    assert refused(StandaloneStart(Role.PS, index=1, spec=spec)).endswith("has no ps:1: its cluster.ps is 1")
    said = "`dtrain worker` was asked for worker:0; TF_CONFIG or the flags say worker:1"
    assert refused(StandaloneStart(Role.WORKER, index=0), TF_CONFIG) == said
    assert refused(StandaloneStart(Role.PS), TF_CONFIG).startswith(
        "`dtrain ps` was asked for ps; TF_CONFIG or the flags say worker:1"
    )
    broken = {"TF_CONFIG": json.dumps({"cluster": {"worker": ["a"]}, "task": {"type": "worker", "index": 0}})}
    assert "host:port" in refused(StandaloneStart(Role.WORKER), broken)


def of_engine(environment, **start):
    return StandaloneStart(None, **start).assignment(environment)


def test_a_task_of_an_engine_trains_by_the_users_spec(tmp_path):
    spec = tmp_path / "spec.yaml"
    spec.write_text("cluster: {chief: 1, ps: 1, worker: 2}\ntraining: {updates: sync}\n")
    hosts = {"SM_HOSTS": '["algo-1", "algo-2", "algo-3", "algo-4"]', "SM_CURRENT_HOST": "algo-3"}
    found = of_engine(hosts, spec=spec, shortcuts={"insecure": True})
    assert str(found.task) == "worker:0"
    assert found.spec.training == SyncSection()
    assert found.spec.cluster.count("ps") == 1


def test_tf_config_comes_before_what_an_engine_says():
    tf_config = (
        '{"cluster": {"chief": ["127.0.0.1:1"], "ps": ["127.0.0.1:2"]}, "task": {"type": "ps", "index": 0}}'
    )
    found = of_engine({"TF_CONFIG": tf_config, "SM_HOSTS": '["algo-1"]', "SM_CURRENT_HOST": "algo-1"})
    assert str(found.task) == "ps:0"


def test_checkpoints_go_where_vertex_wants_them_unless_the_spec_says_where():
    environment = {
        "CLUSTER_SPEC": '{"cluster": {"workerpool0": ["a:2222"]}, "task": {"type": "workerpool0", "index": 0}}',
        "AIP_CHECKPOINT_DIR": "gs://bucket/checkpoints/",
    }
    assert of_engine(environment).spec.checkpoint.remote == "gs://bucket/checkpoints"
    assert of_engine(environment).spec.training == SingleSection()
    own = of_engine(environment, sets=("checkpoint.remote=s3://own/run",))
    assert own.spec.checkpoint.remote == "s3://own/run"


def test_strangers_on_the_network_of_an_engine_are_kept_out():
    hosts = {"SM_HOSTS": '["algo-1", "algo-2"]', "SM_CURRENT_HOST": "algo-1"}
    with pytest.raises(SpecError, match="algo-1:2222, where every process of the network could read"):
        of_engine(hosts)


def test_without_an_engine_a_task_says_what_it_looked_for():
    with pytest.raises(
        SpecError, match="nothing says which task this is: expected one of TF_CONFIG, CLUSTER_SPEC"
    ):
        of_engine({})


def test_a_task_may_listen_elsewhere_than_others_are_told():
    environment = {**TF_CONFIG, "DTRAIN_BIND": "0.0.0.0:9"}
    assert StandaloneStart(Role.WORKER).assignment(environment).bind == "0.0.0.0:9"
    found = StandaloneStart(Role.WORKER, bind="[::]").assignment(environment)
    assert found.bind == "[::]"
    assert found.to_environment("")["DTRAIN_BIND"] == "[::]"


@pytest.mark.parametrize("bind", ["a b", "http://a", "a:b", "::1"])
def test_where_to_listen_must_be_a_host_or_an_address(bind):
    assert "--bind: expected a host" in refused(StandaloneStart(Role.WORKER, bind=bind), TF_CONFIG)
