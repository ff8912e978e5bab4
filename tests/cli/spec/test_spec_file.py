"""Reading a spec: everything wrong at once, each with its place; overrides and their precedence; hostile
files.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from dtrain.config import EMBEDDED_DEFAULT, KillFault, RestartSection
from dtrain.errors import SpecError
from dtrain_cli.spec import BYTES_MAX, read_spec

GOOD = "cluster: {chief: 1, worker: 2, ps: 1}\n"


@pytest.fixture
def spec(tmp_path):
    def write(text: str | bytes, name: str = "spec.yaml") -> Path:
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def mistakes(source: Path | None, *sets: str, **shortcuts) -> list[str]:
    with pytest.raises(SpecError) as caught:
        read_spec(source, sets, shortcuts)
    assert caught.value.exit_code == 2
    return str(caught.value).replace(f"{source}:", "spec:").splitlines()


SECTIONS = "name, on, cluster, training, data, checkpoint, success, restart, wait, hold_ports, security, trace, environment, secrets, simulate, hosts, place, code, python, network, slurm, kubernetes"


def test_every_mistake_is_reported_at_once_with_line_column_and_field(spec):
    path = spec(
        "name: 5\n"
        "bogus: 1\n"
        "cluster:\n"
        "  chief: yes please\n"
        "  worker: [5]\n"
        "  workers: 3\n"
        "training:\n"
        "  updates: asink\n"
        "  seed: 2.5\n"
        "  deterministic: 'yes'\n"
        "  compression: zip\n"
        "restart:\n"
        "  wrker: {}\n"
        "  ps: {max: q, polcy: never}\n"
        "checkpoint:\n"
        "  keep: 0\n"
        "simulate:\n"
        "  kill:\n"
        "    - {at_s: 3}\n"
    )
    assert mistakes(path) == [
        "spec:1:1: name: expected text, found 5",
        f"spec:2:1: bogus: unknown key; expected one of {SECTIONS}",
        (
            "spec:4:3: cluster.chief: expected a count or a list of addresses such as [machine-a:2222], found "
            '"yes please"'
        ),
        (
            "spec:5:3: cluster.worker: expected a count or a list of addresses such as [machine-a:2222], "
            "found [5]"
        ),
        "spec:6:3: cluster.workers: unknown key; did you mean worker?",
        'spec:8:3: training.updates: expected sync or async, found "asink"',
        "spec:9:3: training.seed: expected a whole number, found 2.5",
        'spec:10:3: training.deterministic: expected true or false, found "yes"',
        'spec:11:3: training.compression: expected none, bf16 or fp16, found "zip"',
        "spec:13:3: restart.wrker: unknown key; did you mean worker?",
        'spec:14:8: restart.ps.max: expected a whole number, found "q"',
        "spec:14:16: restart.ps.polcy: unknown key; did you mean policy?",
        "spec:16:3: checkpoint.keep: expected a number of at least 1, found 0",
        "spec:19:7: simulate.kill.0.task: expected a value, found none",
    ]


def test_rules_between_fields_are_located_too(spec):
    path = spec(
        "cluster: {chief: 1, worker: 2, ps: [a:1, a:1, b]}\n"
        "training: {strategy: mirrord, updates: async, backup_workers: 1}\n"
        "simulate:\n"
        "  slow: {worker:7: 2.0}\n"
    )
    assert mistakes(path) == [
        "spec:1:42: cluster.ps.1: a:1 is already the address of ps:0",
        "spec:1:47: cluster.ps.2: expected host:port, found 'b'",
        "spec:2:12: training.strategy: this version has parameter_server, single, mirrored, central_storage, multi_worker_mirrored, pipeline, found 'mirrord'",
        (
            "spec:2:47: training.backup_workers: has no meaning with `updates: async`: each gradient is an update by "
            "itself, as it arrives; it belongs to `updates: sync` (`--updates sync`)"
        ),
        "spec:4:10: simulate.slow.worker:7: the cluster has no worker:7: worker is 2",
    ]


def test_a_broken_cluster_does_not_make_other_mistakes_up(spec):
    assert mistakes(spec("cluster: {wrker: 3}\nsimulate: {slow: {worker:2: 0.5}}\n")) == [
        "spec:1:11: cluster.wrker: unknown key; did you mean worker?",
        "spec:2:19: simulate.slow.worker:2: expected a factor of at least 1, found 0.5",
    ]


def test_a_wrong_type_hides_no_other_mistake_of_its_section_and_makes_none_up(spec):
    path = spec(
        "cluster: {chief: 2, worker: many, ps: -1}\n"
        "training: {strategy: mirrord, seed: x, updates: asynch, backup_workers: 1, stale_gradients: drop, "
        "max_staleness: y}\n"
        "checkpoint: {keep: 0, every: 3}\n"
        "restart: {worker: {policy: nevr, max: -1}, ps: {max: -2}}\n"
        "simulate: {kill: [{at_s: 3}], slow: {worker:1: 0.1}}\n"
    )
    assert [line.partition(": ")[2].partition(":")[0] for line in mistakes(path)] == [
        "cluster.chief",
        "cluster.worker",
        "cluster.ps",
        "training.strategy",
        "training.seed",
        "training.updates",
        "training.max_staleness",
        "checkpoint.keep",
        "checkpoint.every",
        "restart.worker.policy",
        "restart.worker.max",
        "restart.ps.max",
        "simulate.kill.0.task",
        "simulate.slow.worker",
    ]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "spec.json",
            '{\n\t"cluster": {"chief": 1, "worker": ["a:1"]},\n\t"restart": {"worker": {"max": 7}}}',
        ),
        ("spec.toml", "[cluster]\nchief = 1\nworker = ['a:1']\n[restart.worker]\nmax = 7\n"),
        ("spec.yml", "\ufeffcluster: {chief: 1, worker: [a:1]}\ntraining:\nrestart: {worker: {max: 7}}\n"),
    ],
)
def test_json_toml_and_yaml_say_the_same(spec, name, text):
    read = read_spec(spec(text, name))
    assert read.cluster.worker == ("a:1",)
    assert read.restart == {"worker": RestartSection(max=7)}


def test_toml_mistakes_carry_the_field_path(spec):
    path = spec("[cluster]\nchief = 1\nwrker = 2\n", "spec.toml")
    assert mistakes(path) == ["spec: cluster.wrker: unknown key; did you mean worker?"]
    assert "line 1" in mistakes(spec("[cluster\n", "bad.toml"))[0]


def test_precedence_is_set_then_shortcut_then_spec(spec):
    path = spec(GOOD + "training: {seed: 3, updates: sync}\n")
    read = read_spec(
        path, ["cluster.worker=8", "name=x"], {"workers": 4, "ps": 3, "name": "y", "strategy": None}
    )
    assert (read.cluster.worker, read.cluster.ps, read.name) == (8, 3, "x")
    assert (read.training.seed, read.training.updates) == (3, "sync")


def test_sets_reach_tasks_lists_and_absent_sections(spec):
    path = spec(GOOD + "simulate: {kill: [{task: worker:0, at_step: 1}]}\n")
    sets = [
        "simulate.slow.worker:1=5",
        "restart.ps.max=0",
        "simulate.kill.0.at_step=9",
        "security.secret_file=null",
    ]
    read = read_spec(path, [*sets, "cluster.worker=[a:1, b:2]"])
    assert read.simulate.slow == {"worker:1": 5.0}
    assert read.restart["ps"].max == 0
    assert read.simulate.kill == (KillFault("worker:0", at_step=9),)
    assert read.cluster.worker == ("a:1", "b:2")


def test_mistakes_in_options_name_the_option(spec):
    assert mistakes(
        spec(GOOD),
        "simulate.slow.worker:2=5",
        "training.updates=asink",
        "trainin.seed=1",
        "noequals",
        "cluster.worker.first=a:1",
        "name=[",
        backup_workers=-1,
    ) == [
        "--set noequals: expected KEY=VALUE such as cluster.worker=8",
        "--set name=[: expected a YAML value after the '=', such as 8 or [a:1, b:2]",
        "--set cluster.worker.first=a:1: cluster.worker is 2, which has no 'first' below it",
        "--backup-workers -1: expected a number of at least 0, found -1",
        '--set training.updates=asink: expected sync or async, found "asink"',
        "--set trainin.seed=1: trainin: unknown key; did you mean training?",
        "--set simulate.slow.worker:2=5: the cluster has no worker:2: worker is 2",
    ]
    assert mistakes(spec(GOOD), workers=-1)[0].startswith("--workers -1: expected a count")


def test_without_a_spec_there_is_the_embedded_default():
    assert read_spec(None) == EMBEDDED_DEFAULT
    assert read_spec(None, foreign=True).cluster.evaluator == 0
    light = read_spec(None, shortcuts={"workers": 4, "evaluator": False, "name": "x"})
    assert (light.cluster.worker, light.cluster.evaluator, light.name) == (4, 0, "x")
    assert light == read_spec(None, ["cluster.worker=4", "cluster.evaluator=0", "name=x"])
    assert mistakes(None, backup_workers=1, updates="async")[0].startswith(
        "--backup-workers 1: has no meaning with `updates: async`"
    )


def test_the_embedded_default_does_not_load_ruamel():
    code = (
        "import sys\nfrom dtrain_cli.spec import read_spec\nread_spec(None, (), {'workers': 3})\n"
        "sys.exit(any(name.split('.')[0] in ('ruamel', 'numpy', 'grpc') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


BOMB = "a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 12))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (BOMB, "spec:2:10: not YAML that a spec can use: aliases (*name) are refused"),
        (
            "a: 1\nb: {c: 1,\n  c: 2}\n",
            "spec:3:3: not YAML that a spec can use: while constructing a mapping, found duplicate",
        ),
        ("name: 'x", "spec:1:9: not YAML that a spec can use: while scanning a quoted scalar"),
        ("- a\n", "spec:1:1: expected a mapping of keys such as `cluster:`, found a list"),
        ("text", "spec:1:1: expected a mapping of keys such as `cluster:`, found a single value"),
        ("a: 1\n---\nb: 2\n", "spec:2:1: not YAML that a spec can use"),
        ("name: a\n\nb: \0", "spec:3: not YAML that a spec can use: unacceptable character #x0000"),
        (
            "a:\n\tb: 1",
            (
                "spec:2:1: not YAML that a spec can use: while scanning for the next token, found character "
                "'\\t' that cannot start any token; indent with spaces"
            ),
        ),
        (
            "cluster: {chief: 1, ps: 1}\nkubernetes: {jobset: 1}",
            "spec:2:14: kubernetes.jobset: expected true or false or auto, found 1",
        ),
        ("name: 2001-13-45", "spec: not YAML that a spec can use"),
        ("[" * 5000, "spec:1:34: not YAML that a spec can use: nested too deeply; expected at most 32 lists"),
        (
            "cluster: {chief: 1}\nname: " + "{a: " * 5000,
            "spec:2:136: not YAML that a spec can use: nested too deeply",
        ),
        ("- " * 5000, "spec: nested too deeply"),
        (b"name: \xff\xfe", "spec: expected UTF-8 text, found byte 0xff at 6"),
        (b"#" * 10_000_000, "spec: expected a spec of at most 256 KiB, found a larger file"),
        ("", "spec: cluster: no task trains"),
        ("cluster: 3", "spec:1:1: cluster: expected a mapping of keys to values, found 3"),
        (
            "name: !!python/object/apply:os.system [true]\ncluster: {chief: 1}",
            "spec:1:1: name: expected text",
        ),
        ("cluster: {chief: 1}\n? [a, b]\n: 1\n", "spec:2:3: ('a', 'b'): unknown key"),
        ('name: "\\ud800"\ncluster: {worker: 1}\n', "spec"),
        (
            "name: 2001-01-01\ncluster: {worker: 1}\nsimulate: {slow: {1: 2}}",
            "spec:3:19: simulate.slow.1: '1' is not a task",
        ),
    ],
)
def test_hostile_and_broken_files_get_one_clear_message(spec, text, said):
    assert mistakes(spec(text))[0].startswith(said)


def test_an_empty_list_is_said_to_be_one(tmp_path):
    (tmp_path / "spec.yaml").write_text("cluster: {chief: 1, worker: 1, ps: 1}\nsimulate:\n  network:\n")
    assert "simulate.network: expected a list, found null" in mistakes(tmp_path / "spec.yaml")[0]


def test_what_no_spec_says_is_one_mistake(tmp_path):
    spec = tmp_path / "spec.yaml"
    spec.write_text(
        "cluster: {chief: 1, worker: 1, ps: 4611686018427387904}\nsimulate: {network: [{between: [ps:0, worker:0]}]}"
    )
    assert "expected at most 1000000 tasks" in mistakes(spec)[0]
    spec.write_text('{"cluster": {}}: 3}')
    assert "not YAML that a spec can use" in mistakes(spec)[0]
    toml = tmp_path / "spec.toml"
    toml.write_text(f"name = {'9' * 5000}")
    with pytest.raises(SpecError, match="not TOML"):
        read_spec(toml)


def test_missing_files_and_directories(tmp_path):
    assert mistakes(tmp_path / "no.yaml") == ["spec: cannot read the spec: No such file or directory"]
    assert mistakes(tmp_path) == ["spec: cannot read the spec: expected a file, found a folder"]
    assert BYTES_MAX == 256 * 1024


def test_a_strategy_without_servers_needs_no_word_of_servers():
    spec = read_spec(None, (), {"strategy": "multi_worker_mirrored", "workers": 4}, trains=True)
    assert str(spec.cluster) == "1 chief, 4 workers, 1 evaluator"
    assert str(read_spec(None, (), {"strategy": "mirrored"}, trains=True).cluster) == "1 chief, 1 evaluator"
    with pytest.raises(SpecError, match=r"^--workers 4: mirrored trains in one task"):
        read_spec(None, (), {"strategy": "mirrored", "workers": 4}, trains=True)
