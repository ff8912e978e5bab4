"""`dtrain plan --on ssh` shows who logs in where, and which host has which tasks."""

import json

ON = ("plan", "--on", "ssh", "--hosts", "h1,me@h2:2,h3", "--workers", "2", "--ps", "1", "--no-evaluator")


def test_each_host_has_its_login_and_its_tasks(launcher):
    command = launcher.dtrain(*ON, "--json", launcher.program(""))
    assert command.end() == 0, command.err
    hosts = {host["host"]: host for host in json.loads(command.out)["hosts"]}
    assert sorted(task for host in hosts.values() for task in host["tasks"]) == [
        "chief:0", "ps:0", "worker:0", "worker:1",
    ]  # fmt: skip
    assert hosts["me@h2"]["login"][-2] == "me@h2"
    text = launcher.dtrain(*ON, "--set", "place={worker: h1}", launcher.program(""))
    hosts = "hosts=[h1, {host: h4, spare: true}]"
    spare = launcher.dtrain(*ON[:3], "--set", hosts, *ON[5:], launcher.program(""))
    assert spare.end() == 0, spare.err
    assert "h4  spare: it takes over the tasks of a host that is lost\n" in spare.out
    assert "h1  chief:0, worker:0, worker:1, ps:0\n" in spare.out, spare.out
    assert text.end() == 0, text.err
    assert "h3  no task\n" in text.out
    assert "ssh -T -o BatchMode=yes" in text.out
