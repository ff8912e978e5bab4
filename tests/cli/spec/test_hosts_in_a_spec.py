"""`hosts`, `place`, `code`, `python`, `network` and `slurm`: what a spec says of other machines."""

import json
import re

import msgspec
import pytest
from row_by_row import every_row

from dtrain.config import Host, RunSpec, read_hosts
from dtrain.errors import SpecError
from dtrain_cli.spec import read_spec


def read(tmp_path, **sections):
    path = tmp_path / "spec.json"
    path.write_text(json.dumps({"cluster": {"chief": 1, "ps": 1, "worker": 1}, **sections}))
    return read_spec(path)


@every_row(
    "written, hosts",
    [
        ("h1,h2:4,h3", [Host("h1"), Host("h2", 4), Host("h3")]),
        ("n[001-003,7]:2,login", [Host(f"n{n}", 2) for n in ("001", "002", "003", "7")] + [Host("login")]),
        ("user@h1, h2", [Host("user@h1"), Host("h2")]),
        (("h1", Host("h2", 4, "10.0.0.2")), [Host("h1"), Host("h2", 4, "10.0.0.2")]),
        ((Host("fd00::1"),), [Host("fd00::1")]),
        ("[::1]", [Host("::1")]),
        (
            "h1, [fd00::1]:4,me@[fe80::1%eth0],n[1-2]",
            [Host("h1"), Host("fd00::1", 4), Host("me@fe80::1%eth0"), Host("n1"), Host("n2")],
        ),
    ],
)
def test_hosts_are_read(written, hosts):
    assert read_hosts(written) == hosts


@every_row("text", ["h1", "h1:4", "[::1]", "[fd00::1]:4", "me@[fe80::1%eth0]:2"])
def test_a_host_is_written_as_it_is_read(text):
    (host,) = read_hosts(text)
    assert str(host) == text


@every_row(
    "written, message",
    [
        ("", "expected hosts such as"),
        ("h1,", "expected hosts such as"),
        ("h1,,h2", "expected hosts such as"),
        ("h1:", "expected hosts such as"),
        ("h1:0", "expected at least 1 slot for h1, found 0"),
        ("h1:x", "expected hosts such as"),
        ("fd00::1", "an IPv6 address stands in brackets: [fd00::1]:4"),
        ("[fd00::1]x", "expected"),
        ("h[1-3", "expected hosts such as"),
        ("h1,h2,h1:3", "h1 stands there twice"),
        ("-oProxyCommand=x", "leading dash"),
        ("a b", "without spaces"),
        ((Host("h1", address="-x"),), "leading dash"),
        ("n[1-99999],m[1-99999]", "at most 100000 hosts"),
    ],
)
def test_what_is_no_host_is_said(written, message):
    with pytest.raises(SpecError, match=re.escape(message)):
        read_hosts(written)


def test_a_spec_says_all_of_it_and_keeps_it_through_json(tmp_path):
    spec = read(
        tmp_path,
        hosts=["h1", {"host": "h2", "slots": 4, "address": "10.0.0.2"}, {"host": "h3", "spare": True}],
        place={"ps": "spread", "chief": "h1", "worker": ["h2", "h1"]},
        code={"from": ".", "exclude": ["data/", ".venv/"]},
        python=".venv/bin/python",
        network={"ports": "20000-20999", "interface": "10.0.0.0/24", "bind": "0.0.0.0"},
        slurm={"time": "2:00:00", "nodes": 2, "requeue": True, "options": ["--constraint=avx2"]},
    )
    assert read_hosts(spec.hosts) == [Host("h1"), Host("h2", 4, "10.0.0.2"), Host("h3", spare=True)]
    assert spec.place == {"ps": "spread", "chief": "h1", "worker": ("h2", "h1")}
    assert spec.code == {"from": ".", "exclude": ("data/", ".venv/")}
    assert (spec.network.port_range, str(spec.network.subnet)) == (range(20000, 21000), "10.0.0.0/24")
    assert msgspec.json.decode(msgspec.json.encode(spec), type=RunSpec) == spec


def test_hosts_may_be_a_text_and_absent_keys_mean_nothing(tmp_path):
    assert read_hosts(read(tmp_path, hosts="h1,h2:4").hosts) == [Host("h1"), Host("h2", 4)]
    spec = read(tmp_path)
    assert (spec.hosts, spec.place, spec.code, spec.python) == ((), {}, None, None)
    assert spec.network.port_range is None
    assert spec.network.subnet is None


@every_row(
    "sections, message",
    [
        ({"hosts": 3}, "hosts: expected a list such as [h1, h2:4], or a text such as h1,h2:4, found 3"),
        ({"hosts": [3]}, "hosts.0: expected"),
        ({"hosts": [{"host": "h1", "slotz": 1}]}, "hosts.0.slotz: unknown key; did you mean slots?"),
        ({"hosts": [{"slots": 2}]}, "hosts.0.host: expected a value, found none"),
        ({"hosts": ["h1", "h 2"]}, "hosts.1: expected the name of a host without spaces"),
        ({"hosts": ["h1", "h1"]}, "hosts: h1 stands there twice"),
        ({"place": {"ps": "spread"}}, "place: says on which host a task runs, and hosts names none"),
        (
            {"hosts": "h1", "place": {"ps": "h2"}},
            "place.ps: 'h2' is none of the hosts that have tasks at the start, which are h1",
        ),
        (
            {"hosts": "h1", "place": {"ps": ["h1", "h3"]}},
            "place.ps: 'h3' is none of the hosts that have tasks",
        ),
        (
            {"hosts": ["h1", {"host": "h2", "spare": True}], "place": {"ps": "h2"}},
            "place.ps: 'h2' is none of the hosts that have tasks at the start, which are h1",
        ),
        ({"hosts": [{"host": "h1", "spare": True}]}, "hosts: expected a host that is not spare, found none"),
        ({"hosts": [{"host": "h1", "spare": 3}]}, "hosts.0.spare: expected true or false"),
        ({"hosts": "h1", "place": {"ps": []}}, "place.ps: expected spread, pack, a host or a list of hosts"),
        ({"hosts": "h1", "place": {"pss": "h1"}}, "place.pss: unknown key; did you mean ps?"),
        ({"hosts": "h1", "place": "h1"}, "place: expected spread, pack, or a mapping"),
        (
            {"hosts": "h1", "place": {"ps": 3}},
            "place.ps: expected spread, pack, a host or a list of hosts, f",
        ),
        ({"code": {"from": ""}}, "code.from: expected a folder, found ''"),
        ({"code": {"from": ".", "exclude": ["../x"]}}, "code.exclude.0: expected a pattern below the folder"),
        ({"code": {"form": "."}}, "code.form: unknown key; did you mean from?"),
        ({"python": ""}, "python: expected the path of an interpreter"),
        ({"network": {"ports": "5-3"}}, "network.ports: expected a range of ports such as 20000-20999"),
        ({"network": {"interface": "10.0.0.0/99"}}, "network.interface: expected a network such as"),
        ({"network": {"bind": "http://x"}}, "network.bind: expected auto or an address"),
        ({"slurm": {"time": "soon"}}, "slurm.time: expected a time such as 2:00:00"),
        ({"slurm": {"nodes": 0}}, "slurm.nodes: expected a number of at least 1, found 0"),
        ({"slurm": {"partition": "a b"}}, "slurm.partition: expected a name"),
        ({"slurm": {"grace_s": 0}}, "slurm.grace_s: expected seconds from 1 to 65535"),
        ({"slurm": {"options": ["avx2"]}}, "slurm.options.0: expected an option of sbatch"),
        ({"slurm": {"options": ["--time=3"]}}, "--time is set by dtrain; say slurm.time instead"),
        ({"slurm": {"options": ["-N4"]}}, "-N is set by dtrain; say slurm.nodes instead"),
        ({"slurm": {"options": ["--x\n#SBATCH -A y"]}}, "expected an option of sbatch"),
    ],
)
def test_what_is_wrong_with_them_is_said_once(tmp_path, sections, message):
    with pytest.raises(SpecError, match=re.escape(message)) as refused:
        read(tmp_path, **sections)
    assert len(str(refused.value).splitlines()) == 1
