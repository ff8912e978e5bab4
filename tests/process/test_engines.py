"""Where engines say that a task stands: the variables of their documentation, and what is wrong with them."""

import json
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from row_by_row import every_row

from dtrain.cluster import ClusterSpec, TaskId
from dtrain.cluster.hosts import compress_hosts, expand_counts, expand_hosts
from dtrain.config import ClusterSection, read_hosts
from dtrain.errors import SpecError
from dtrain.process.engines import (
    aws_batch_place,
    find_place,
    indexed_job_place,
    sagemaker_place,
    slurm_place,
    vertex_place,
)

# "Distributed training" in the documentation of Vertex AI: the example of CLUSTER_SPEC.
VERTEX = {
    "cluster": {
        "workerpool0": ["cmle-training-workerpool0-ab-0:2222"],
        "workerpool1": ["cmle-training-workerpool1-ab-0:2222", "cmle-training-workerpool1-ab-1:2222"],
        "workerpool2": ["cmle-training-workerpool2-ab-0:2222", "cmle-training-workerpool2-ab-1:2222"],
        "workerpool3": [
            "cmle-training-workerpool3-ab-0:2222",
        ],
    },
    "environment": "cloud",
    "task": {"type": "workerpool0", "index": 0, "trial": "TRIAL_ID"},
    "job": {"worker_pool_specs": []},
}


def of_vertex(**changes):
    return {"CLUSTER_SPEC": json.dumps({**VERTEX, **changes})}


@pytest.mark.parametrize(
    ("pool", "index", "task"),
    [
        ("workerpool0", 0, "chief:0"),
        ("workerpool1", 1, "worker:1"),
        ("workerpool2", 1, "ps:1"),
        ("workerpool3", 0, "evaluator:0"),
    ],
)
def test_vertex_pools_are_roles(pool, index, task):
    place = vertex_place(of_vertex(task={"type": pool, "index": index}))
    assert place.task == TaskId.parse(task)
    assert place.cluster == ClusterSpec.from_lists(
        chief=["cmle-training-workerpool0-ab-0:2222"],
        worker=["cmle-training-workerpool1-ab-0:2222", "cmle-training-workerpool1-ab-1:2222"],
        ps=["cmle-training-workerpool2-ab-0:2222", "cmle-training-workerpool2-ab-1:2222"],
    )


def test_a_single_replica_of_vertex_trains_alone():
    place = vertex_place(of_vertex(cluster={"workerpool0": ["a:2222"], "workerpool1": []}))
    assert (place.task, bool(place.cluster)) == (TaskId.parse("chief:0"), False)


@pytest.mark.parametrize(
    "text",
    ["{", "[]", '{"cluster": {}}', '{"cluster": {"workerpool0": "a:1"}, "task": {}}'],
)
def test_vertex_says_what_is_wrong(text):
    with pytest.raises(SpecError, match="CLUSTER_SPEC in the environment"):
        vertex_place({"CLUSTER_SPEC": text})


def test_vertex_refuses_a_replica_that_the_pool_does_not_have():
    with pytest.raises(SpecError, match='"task" is workerpool1 2, and the pool has 2 replicas'):
        vertex_place(of_vertex(task={"type": "workerpool1", "index": 2}))


# ENVIRONMENT_VARIABLES.md of the SageMaker training toolkit: SM_HOSTS='["algo-1","algo-2"]', SM_CURRENT_HOST=algo-1.
def of_sagemaker(hosts, current):
    return {"SM_HOSTS": json.dumps([f"algo-{each}" for each in hosts]), "SM_CURRENT_HOST": f"algo-{current}"}


def test_sagemaker_hosts_take_chief_servers_workers_in_the_order_of_their_numbers():
    place = sagemaker_place(of_sagemaker([10, 2, 1, 3], 10), ClusterSection(chief=1, ps=1, worker=2))
    assert place.task == TaskId.parse("worker:1")
    assert place.cluster == ClusterSpec.from_lists(
        chief=["algo-1:2222"], ps=["algo-2:2222"], worker=["algo-3:2222", "algo-10:2222"]
    )


@pytest.mark.parametrize(
    ("hosts", "tasks"), [(1, {}), (2, {"chief": 1, "ps": 1}), (5, {"chief": 1, "ps": 1, "worker": 3})]
)
def test_without_a_spec_hosts_are_a_chief_a_server_and_workers(hosts, tasks):
    place = sagemaker_place(of_sagemaker(range(1, hosts + 1), 1), None)
    assert {role.value: len(each) for role, each in place.cluster.jobs.items()} == tasks
    assert place.task == TaskId.parse("chief:0")


def test_the_evaluator_takes_the_last_host_and_is_not_in_the_cluster():
    place = sagemaker_place(of_sagemaker([1, 2, 3], 3), ClusterSection(chief=1, ps=1, evaluator=1))
    assert place.task == TaskId.parse("evaluator:0")
    assert place.cluster == ClusterSpec.from_lists(chief=["algo-1:2222"], ps=["algo-2:2222"])


def test_a_spec_with_another_number_of_tasks_is_refused():
    with pytest.raises(
        SpecError, match="SageMaker has started 2 tasks, and the spec has 3: 1 chief, 2 workers"
    ):
        sagemaker_place(of_sagemaker([1, 2], 1), ClusterSection(chief=1, worker=2))


def test_a_current_host_that_is_not_listed_is_refused():
    with pytest.raises(SpecError, match=r"SM_CURRENT_HOST.*expected one of algo-1, algo-2, found 'algo-9'"):
        sagemaker_place(of_sagemaker([1, 2], 9), None)


def of_slurm(number, **more):
    variables = {
        "SLURM_PROCID": str(number),
        "SLURM_JOB_ID": "1403",
        "SLURM_STEP_NODELIST": "n[009-011]",
        "SLURM_STEP_TASKS_PER_NODE": "2,1(x2)",
    }
    return variables | more


def test_slurm_tasks_of_a_node_have_ports_next_to_each_other():
    place = slurm_place(of_slurm(3), ClusterSection(chief=1, ps=1, worker=2))
    assert place.task == TaskId.parse("worker:1")
    assert place.cluster == ClusterSpec.from_lists(
        chief=["n009:40300"], ps=["n009:40301"], worker=["n010:40300", "n011:40300"]
    )


def test_slurm_deals_tasks_to_nodes_in_turn_where_the_distribution_is_cyclic():
    place = slurm_place(of_slurm(3, SLURM_DISTRIBUTION="cyclic"), ClusterSection(chief=1, ps=1, worker=2))
    assert place.cluster == ClusterSpec.from_lists(
        chief=["n009:40300"], ps=["n010:40300"], worker=["n011:40300", "n009:40301"]
    )


@pytest.mark.parametrize(
    ("distribution", "nodes"),
    [("cyclic", ["h1"] * 3 + ["h2", "h3", "h2", "h2"]), ("block", ["h1"] * 3 + ["h2"] * 3 + ["h3"])],
)
def test_tasks_of_a_heterogeneous_job_are_numbered_part_after_part(distribution, nodes):
    """As Slurm 22.05 has numbered them: `salloc -N1 -n3 : -N2 -n4 srun --het-group=0,1`."""
    variables = of_slurm(
        6,
        SLURM_STEP_NODELIST="h[1-3]",
        SLURM_STEP_TASKS_PER_NODE="3(x2),1",
        SLURM_HET_SIZE="2",
        SLURM_JOB_NODELIST_HET_GROUP_0="h1",
        SLURM_JOB_NODELIST_HET_GROUP_1="h[2-3]",
        SLURM_DISTRIBUTION=distribution,
    )
    place = slurm_place(variables, ClusterSection(chief=1, ps=2, worker=4))
    addresses = [place.cluster.address(TaskId.parse(task)) for task in ("chief:0", "ps:0", "ps:1")]
    addresses += [place.cluster.address(TaskId.parse(f"worker:{index}")) for index in range(4)]
    assert [address.partition(":")[0] for address in addresses] == nodes
    assert place.task == TaskId.parse("worker:3")
    assert len(set(addresses)) == 7


def test_the_nodes_of_a_step_are_sorted_whatever_their_parts():
    """As Slurm 22.05 has it: `salloc -N1 -n1 -w h3 : -N2 -n3 -w h[1-2] srun --het-group=0,1`."""
    variables = of_slurm(
        0,
        SLURM_STEP_NODELIST="h[1-3]",
        SLURM_STEP_TASKS_PER_NODE="2,1(x2)",
        SLURM_HET_SIZE="2",
        SLURM_JOB_NODELIST_HET_GROUP_0="h3",
        SLURM_JOB_NODELIST_HET_GROUP_1="h[1-2]",
    )
    place = slurm_place(variables, ClusterSection(chief=1, ps=1, worker=2))
    assert place.cluster == ClusterSpec.from_lists(
        chief=["h3:40300"], ps=["h1:40300"], worker=["h1:40301", "h2:40300"]
    )


def test_a_step_over_one_part_of_a_heterogeneous_job_has_that_part_s_nodes():
    variables = of_slurm(
        1,
        SLURM_STEP_NODELIST="h[2-3]",
        SLURM_STEP_TASKS_PER_NODE="1(x2)",
        SLURM_HET_SIZE="2",
        SLURM_JOB_NODELIST_HET_GROUP_0="h1",
        SLURM_JOB_NODELIST_HET_GROUP_1="h[2-3]",
    )
    place = slurm_place(variables, ClusterSection(chief=1, ps=1))
    assert place.cluster == ClusterSpec.from_lists(chief=["h2:40300"], ps=["h3:40300"])


def test_slurm_uses_the_ports_that_the_step_has_reserved():
    place = slurm_place(of_slurm(0, SLURM_STEP_RESV_PORTS="12005-12006"), None)
    assert place.cluster.address(TaskId.parse("ps:0")) == "n009:12006"


@every_row(
    "more, message",
    [
        ({"SLURM_DISTRIBUTION": "plane=2"}, "SLURM_DISTRIBUTION .* expected block or cyclic"),
        ({"SLURM_STEP_RESV_PORTS": "12005"}, "expected a port for each of 2 tasks"),
        ({"SLURM_STEP_TASKS_PER_NODE": "2"}, "names 3 nodes and the tasks of 1"),
        ({"SLURM_STEP_TASKS_PER_NODE": "two"}, r"expected counts such as 2\(x3\),1"),
        ({"SLURM_JOB_ID": ""}, "SLURM_JOB_ID in the environment: expected a number, found ''"),
        ({"SLURM_PROCID": "4"}, "task 4 of 4, which are 0 to 3"),
        ({"SLURM_STEP_NODELIST": ""}, "SLURM_STEP_NODELIST is not; start the task with srun"),
    ],
)
def test_slurm_says_what_is_wrong(more, message):
    with pytest.raises(SpecError, match=message):
        slurm_place(of_slurm(0) | more, None)


SPEC_OF_PODS = ClusterSection(
    chief=("run-chief-0.run:2222",), ps=("run-ps-0.run:2222", "run-ps-1.run:2222"), evaluator=1
)


def test_a_pod_of_an_indexed_job_is_named_by_its_role_and_index():
    place = indexed_job_place({"DTRAIN_ROLE": "ps", "JOB_COMPLETION_INDEX": "1"}, SPEC_OF_PODS)
    assert place.task == TaskId.parse("ps:1")
    assert place.cluster.servers == ("run-ps-0.run:2222", "run-ps-1.run:2222")


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"JOB_COMPLETION_INDEX": "0"}, "expected DTRAIN_ROLE beside it"),
        ({"DTRAIN_ROLE": "ps", "JOB_COMPLETION_INDEX": "2"}, "say ps:2, and the spec has no address for it"),
        ({"DTRAIN_ROLE": "ps", "JOB_COMPLETION_INDEX": "x"}, "JOB_COMPLETION_INDEX.*expected a number"),
    ],
)
def test_an_indexed_job_says_what_is_wrong(environment, message):
    with pytest.raises(SpecError, match=message):
        indexed_job_place(environment, SPEC_OF_PODS)


def test_without_an_engine_nothing_is_said():
    assert find_place({"PATH": "/bin"}, None, str) is None


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("n1", ["n1"]),
        ("n[001-003,7],login", ["n001", "n002", "n003", "n7", "login"]),
        ("r[1-2]n[09-10].x", ["r1n09.x", "r1n10.x", "r2n09.x", "r2n10.x"]),
        ("a-1,b-[8-11]", ["a-1", "b-8", "b-9", "b-10", "b-11"]),
    ],
)
def test_a_compressed_list_names_its_hosts(text, hosts):
    assert expand_hosts(text) == hosts


@every_row("text", ["", "n[", "n]", "n[1-]", "n[3-1]", "a,,b", "n[1-999999999]", "n[[1]]", "n[a]"])
def test_what_is_no_list_of_hosts_is_refused(text):
    with pytest.raises(SpecError):
        expand_hosts(text)


@given(st.lists(st.from_regex(r"[a-c]{1,2}-?\d{1,3}(\.x)?|login", fullmatch=True), min_size=1))
def test_compressed_hosts_expand_to_the_same_hosts(hosts):
    assert expand_hosts(compress_hosts(hosts)) == hosts


def test_hosts_in_a_row_take_one_pair_of_brackets():
    assert compress_hosts(["n008", "n009", "n010", "n012", "x"]) == "n[008-010,012],x"


def test_counts_by_node_are_expanded():
    assert expand_counts("2(x3),1") == [2, 2, 2, 1]


# "Environment variables" of multi-node parallel jobs in the documentation of AWS Batch.
def of_batch(number, count=4, main=0):
    environment = {
        "AWS_BATCH_JOB_NODE_INDEX": str(number),
        "AWS_BATCH_JOB_NUM_NODES": str(count),
        "AWS_BATCH_JOB_MAIN_NODE_INDEX": str(main),
    }
    if number != main:
        environment["AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS"] = "10.0.0.7"
    return environment


def own_host(peer):
    return "10.0.0.7" if peer is None else "10.0.0.8"


@pytest.mark.parametrize("main", [0, 2])
def test_on_aws_batch_the_main_node_is_the_first_server_and_the_others_tell_it_where_they_serve(main):
    counts = ClusterSection(chief=1, ps=2, worker=1)
    places = [aws_batch_place(of_batch(number, main=main), counts, own_host) for number in range(4)]
    assert len({place.cluster.hash for place in places}) == 1
    assert sorted(str(place.task) for place in places) == ["chief:0", "ps:0", "ps:1", "worker:0"]
    assert str(places[main].task) == "ps:0"
    assert places[main].cluster.address(places[main].task) == "10.0.0.7:2222"
    assert {str(place.task): place.serves_at for place in places if place.serves_at} == {
        "ps:1": "10.0.0.8:2222"
    }


def test_a_single_node_of_aws_batch_trains_alone():
    place = aws_batch_place(of_batch(0, count=1), None, own_host)
    assert (str(place.task), bool(place.cluster)) == ("chief:0", False)


@every_row(
    "environment, counts, what",
    [
        (of_batch(4), None, "expected numbers below AWS_BATCH_JOB_NUM_NODES, 4"),
        (of_batch(1) | {"AWS_BATCH_JOB_MAIN_NODE_INDEX": "x"}, None, "MAIN_NODE_INDEX in the environment: expected a number"),
        (of_batch(1) | {"AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS": ""}, None, "is not in the environment of node 1"),
        (of_batch(1), ClusterSection(worker=4), "expected a cluster with ps tasks"),
        (of_batch(1), ClusterSection(chief=1, ps=1), "has started 4 tasks, and the spec has 2"),
    ],
)  # fmt: skip
def test_aws_batch_says_what_is_wrong(environment, counts, what):
    with pytest.raises(SpecError, match=what):
        aws_batch_place(environment, counts, own_host)


def numbered(variables, counts=None, hosts=""):
    return find_place(variables, counts, str, read_hosts(hosts) if hosts else ())


def of_job(tmp_path, kind):
    """The variables in which jobs name their hosts: two slots on n1, two on n2."""
    if (
        kind == "PBS"
    ):  # "PBS_NODEFILE", a name for each slot: "Environment variables" of the user's guide of PBS
        (tmp_path / "nodes").write_text("n1\nn1\nn2\nn2\n")
        return {"PBS_NODEFILE": str(tmp_path / "nodes"), "PBS_JOBID": "314.server"}
    if kind == "LSF":  # "Environment variables set for job execution" of LSF
        return {"LSB_MCPU_HOSTS": "n1 2 n2 2", "LSB_HOSTS": "n1 n1 n2 n2", "LSB_JOBID": "314"}
    # As Slurm 22.05 has set them in the script of `sbatch -N2 --ntasks-per-node=2`.
    return {
        "SLURM_JOB_NODELIST": "n[1-2]",
        "SLURM_TASKS_PER_NODE": "2(x2)",
        "SLURM_JOB_ID": "314",
        "SLURM_PROCID": "0",
    }


RECORDS = {
    # As Open MPI 4.1.4 has set them for `mpirun -np 4`; "Environment variables set for MPI applications".
    "Open MPI": lambda number, local: {
        "OMPI_COMM_WORLD_RANK": str(number),
        "OMPI_COMM_WORLD_SIZE": "4",
        "OMPI_COMM_WORLD_LOCAL_RANK": str(local),
        "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
        "OMPI_COMM_WORLD_NODE_RANK": str(local),
        "PMIX_NAMESPACE": "1441136641",
        "PMIX_RANK": str(number),
    },
    # As MPICH 4.0.2 has set them for `mpiexec.hydra -n 4`; Intel MPI starts processes by Hydra too.
    "PMI": lambda number, local: {
        "MPI_LOCALNRANKS": "2",
        "MPI_LOCALRANKID": str(local),
        "PMI_FD": "6",
        "PMI_RANK": str(number),
        "PMI_SIZE": "4",
    },
    # "Environment variables" of the PMIx standard, section 2: a process knows its namespace and its rank.
    "PMIx": lambda number, _: {"PMIX_RANK": str(number), "PMIX_NAMESPACE": "prterun-n1-4711@1"},
    # flux-environment(7), "FLUX_TASK_RANK" and those beside it.
    "Flux": lambda number, local: {
        "FLUX_JOB_ID": "f23vDb4Rw",
        "FLUX_JOB_NNODES": "2",
        "FLUX_JOB_SIZE": "4",
        "FLUX_TASK_LOCAL_ID": str(local),
        "FLUX_TASK_RANK": str(number),
    },
    # blaunch of LSF: tasks are numbered from 1, as the launchers of Open MPI and PRRTE read it.
    "LSF": lambda number, _: {"LSF_PM_TASKID": str(number + 1), "LSB_DJOB_NUMPROC": "4"},
    # pbsdsh(1B): PBS_NODENUM is the number of the virtual node.
    "PBS": lambda number, _: {"PBS_NODENUM": str(number), "PBS_TASKNUM": "3"},
}
ON_TWO_NODES = ["chief:0", "ps:0", "worker:0", "worker:1"]


@pytest.mark.parametrize(
    ("engine", "job"),
    [
        *product(RECORDS, ["PBS", "LSF", "spec"]),
        *product(["Open MPI", "PMI", "Flux"], ["Slurm"]),  # others are no inner engines of Slurm
    ],
)
def test_tasks_that_are_numbered_find_their_hosts_in_the_job_or_the_spec(tmp_path, engine, job):
    hosts = {} if job == "spec" else of_job(tmp_path, job)
    places = [
        numbered(hosts | RECORDS[engine](number, number % 2), None, "n[1-2]:2" if job == "spec" else "")
        for number in range(4)
    ]
    assert [str(place.task) for place in places] == ON_TWO_NODES
    assert len({place.cluster.hash for place in places}) == 1
    addresses = [places[0].cluster.address(place.task) for place in places]
    assert [address.partition(":")[0] for address in addresses] == ["n1", "n1", "n2", "n2"]
    assert len(set(addresses)) == 4
    assert job != "spec" or addresses == ["n1:2222", "n1:2223", "n2:2222", "n2:2223"]


@every_row("engine", list(RECORDS))
def test_where_nothing_names_the_hosts_the_remedy_is_said(engine):
    message = (
        f"^{engine} says that this is task 1, and nothing names the hosts: name them .*--set hosts=h1:2,h2:2"
    )
    with pytest.raises(SpecError, match=message):
        numbered(RECORDS[engine](1, 1))


@every_row("engine", list(RECORDS))
def test_addresses_of_a_spec_are_those_of_the_numbers(engine):
    section = ClusterSection(chief=("a:1",), ps=("b:2",), worker=("c:3",), evaluator=1)
    places = [numbered(RECORDS[engine](number, 0), section) for number in range(4)]
    assert [str(place.task) for place in places] == ["chief:0", "ps:0", "worker:0", "evaluator:0"]
    assert places[3].cluster == ClusterSpec.from_lists(chief=["a:1"], ps=["b:2"], worker=["c:3"])


def test_hosts_with_as_many_tasks_each_need_no_slots():
    place = numbered(RECORDS["Flux"](2, 0), None, "n1,n2")
    assert place.cluster.address(place.task) == "n2:2222"


@every_row(
    "variables, counts, hosts, message",
    [
        (RECORDS["Open MPI"](1, 0), None, "n1,n2", r"task 1 is number 0 on its host, .* it would be number 1: .*--map-by slot"),
        (RECORDS["Open MPI"](1, 1), None, "n[1-3]", "has started 4 tasks, and the hosts have 3 slots on 3 hosts"),
        (RECORDS["Open MPI"](4, 1), None, "n1,n2", "task 4 of 4, which are 0 to 3"),
        (RECORDS["PMI"](0, 0), ClusterSection(chief=1, worker=1), "n1", "has started 4 tasks, and the spec has 2"),
        ({"FLUX_TASK_RANK": "x"}, None, "n1", "FLUX_TASK_RANK in the environment: expected a number, found 'x'"),
        ({"PBS_NODENUM": "1", "PBS_NODEFILE": "/nowhere"}, None, "", "PBS says that this is task 1, and nothing names the hosts"),
        ({"LSF_PM_TASKID": "0"}, None, "n1", "says that this is task -1"),
        ({"LSF_PM_TASKID": "1", "LSB_MCPU_HOSTS": "n1 many"}, None, "", "expected counts"),
        ({"SKYPILOT_NODE_RANK": "0"}, None, "", "SKYPILOT_NODE_IPS is not"),
        ({"SKYPILOT_NODE_RANK": "0", "SKYPILOT_NODE_IPS": "a b:c"}, None, "", "SKYPILOT_NODE_IPS in the environment"),
    ],
)  # fmt: skip
def test_numbered_tasks_say_what_is_wrong(variables, counts, hosts, message):
    with pytest.raises(SpecError, match=message):
        numbered(variables, counts, hosts)


def test_processes_of_hydra_in_a_step_of_slurm_are_not_those_of_the_step(tmp_path):
    """Hydra starts one process a node by srun, and the others below it, which inherit its SLURM_PROCID."""
    step = of_job(tmp_path, "Slurm") | {"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NODELIST": "n[1-2]"}
    step |= {"SLURM_STEP_TASKS_PER_NODE": "1(x2)", "SLURM_PROCID": "1"}
    assert str(numbered(step | RECORDS["PMI"](3, 1)).task) == "worker:1"
    assert str(numbered(step).task) == "ps:0"
    assert str(numbered(step | {"PMI_RANK": "1", "PMI_SIZE": "2"}).task) == "ps:0", "srun --mpi=pmi2"


def test_nodes_of_skypilot_are_their_addresses():
    """The variables are those of "Environment variables" in the documentation of SkyPilot: a line for each node."""
    variables = {
        "SKYPILOT_NODE_RANK": "1",
        "SKYPILOT_NODE_IPS": "10.0.0.7\n10.0.0.8\n",
        "SKYPILOT_NUM_NODES": "2",
    }
    place = numbered(variables)
    assert (str(place.task), place.cluster.address(place.task)) == ("ps:0", "10.0.0.8:2222")
