"""More replicas than a machine has cores, over four hosts that are network namespaces: all of them make every step."""

import json

import pytest
from chaos import counted_rows
from clusters.test_cluster_hosts import over_hosts  # noqa: F401  (a fixture)

HOSTS, STEPS = 4, 6
END_S = 600.0


@pytest.mark.night("tens of processes, and gigabytes of memory")
@pytest.mark.long("tens of processes start on few cores")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("replicas", [54, 200])
def test_all_replicas_of_four_hosts_step(over_hosts, replicas):  # noqa: F811
    run = over_hosts(*sorted(rank % HOSTS for rank in range(replicas)), deterministic=False)
    spec = json.loads(run.spec.read_text())
    run.spec.write_text(json.dumps({**spec, "wait": {"start_s": END_S, "leader_s": END_S}}))
    words = ("--examples", STEPS * replicas, "--batch", replicas, "--width", "1", "--pace_s", "0", "--tell")
    run.start_all(*map(str, words), program=counted_rows.__file__)
    codes = {task: command.end(END_S) for task, command in run.commands.items()}
    assert set(codes.values()) == {0}, [run.commands[task].err for task, code in codes.items() if code][:3]
    lines = [command.out.splitlines()[-1] for command in run.commands.values()]
    told = [json.loads(line.removeprefix("TOLD ")) for line in lines]
    assert sum(each["leads"] for each in told) == 1
    assert all(each["miscounted"] == {} for each in told)
    assert len({(each["bits"], json.dumps(each["history"])) for each in told}) == 1
