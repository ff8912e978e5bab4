"""`dtrain task -- COMMAND`: any executable has its place in the words of other frameworks, and the code it is sent."""

import gzip
import json

from dtrain_cli.code import pack

ASK = """
import json, os
print(json.dumps({name: os.environ.get(name) for name in
    ("TF_CONFIG", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR")}))
"""


def test_a_command_on_a_numbered_host_has_its_place_and_servers_come_after_all_that_train(launcher):
    """Without a spec hosts are a chief, a server, and workers, by their numbers."""
    hosts = [f"algo-{number}" for number in range(1, 5)]
    commands = [
        launcher.dtrain(
            *("task", "--insecure", "--", "python3", "-c", ASK),
            environment={"SM_HOSTS": json.dumps(hosts), "SM_CURRENT_HOST": host},
        )
        for host in hosts[1:3]
    ]
    told = []
    for command in commands:
        out, err = command.process.communicate(timeout=60)
        assert command.process.returncode == 0, err
        told.append(json.loads(out.splitlines()[-1]))
    server, worker = told
    addresses = {
        "chief": ["algo-1:2222"],
        "ps": ["algo-2:2222"],
        "worker": ["algo-3:2222", "algo-4:2222"],
    }
    assert [json.loads(each["TF_CONFIG"])["cluster"] for each in told] == [addresses, addresses]
    assert [json.loads(each["TF_CONFIG"])["task"] for each in told] == [
        {"type": "ps", "index": 0},
        {"type": "worker", "index": 0},
    ]
    assert (server["RANK"], server["WORLD_SIZE"], server["LOCAL_RANK"]) == ("3", None, None)
    assert (worker["RANK"], worker["WORLD_SIZE"]) == ("1", "3")
    assert (worker["LOCAL_RANK"], worker["LOCAL_WORLD_SIZE"]) == ("0", "1")
    assert worker["MASTER_ADDR"] == "algo-1"


def test_a_command_works_beside_the_code_of_an_archive_and_a_damaged_one_is_named(launcher):
    folder = launcher.folder
    (folder / "sent" / "pkg").mkdir(parents=True)
    (folder / "sent" / "pkg" / "said.txt").write_text("it came")
    code = gzip.compress(pack(folder / "sent", ["pkg/said.txt"]).data)
    (folder / "code.tar.gz").write_bytes(code)
    (folder / "half.tar.gz").write_bytes(code[:50])
    ask = ("--", "cat", "pkg/said.txt")
    hosts = {"SM_HOSTS": '["algo-1"]', "SM_CURRENT_HOST": "algo-1"}
    for archive, said in (("code.tar.gz", "it came"), ("half.tar.gz", "half.tar.gz: ")):
        words = ("task", "--insecure", "--work", "work", "--code", archive, *ask)
        out, err = launcher.dtrain(*words, environment=hosts).process.communicate(timeout=60)
        assert said in out + err
