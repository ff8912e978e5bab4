"""The engine of a launch: said by `--on`, by the spec, or by `--set`; the strongest wins."""

import pytest
from click.testing import CliRunner
from row_by_row import every_row

from dtrain.config.choices import On
from dtrain.errors import SpecError
from dtrain_cli.commands.command_line import ENGINES
from dtrain_cli.launch.engines import COMMANDS, command_of, engine_of
from dtrain_cli.launch.options import LaunchOptions
from dtrain_cli.main import cli


def test_the_option_knows_every_engine():
    assert set(ENGINES) == set(On)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.yaml", "cluster: {worker: 1}\non: kubernetes\n"),
        ("a.yaml", '{"on": "kubernetes", "cluster": {}}'),
        ("a.json", '{\n "cluster": {},\n "on": "kubernetes"\n}'),
        ("a.toml", 'on = "kubernetes"\n[cluster]\nworker = 1\n'),
    ],
)
def test_a_spec_names_the_engine_and_options_win_over_it(tmp_path, name, text):
    spec = tmp_path / name
    spec.write_text(text)
    assert engine_of(LaunchOptions(spec=spec)) is On.KUBERNETES
    assert engine_of(LaunchOptions(spec=spec, shortcuts={"on": "ssh"})) is On.SSH
    assert engine_of(LaunchOptions(spec=spec, shortcuts={"on": "ssh"}, sets=("on=local",))) is On.LOCAL


@every_row("text", ["on: mars\n", "on: [1]\n", "cluster: {worker: 1}\n", "[", ""])
def test_without_a_known_word_it_is_this_machine_and_the_reader_of_the_spec_complains(tmp_path, text):
    spec = tmp_path / "a.yaml"
    spec.write_text(text)
    assert engine_of(LaunchOptions(spec=spec)) is On.LOCAL
    assert engine_of(LaunchOptions(spec=tmp_path / "absent.yaml")) is On.LOCAL


def test_an_engine_that_cannot_launch_is_refused_with_those_that_can(monkeypatch):
    monkeypatch.delitem(COMMANDS[On.KUBERNETES], "launch")
    with pytest.raises(SpecError, match=r"launch knows no kubernetes; expected one of local.*plan --on kub"):
        command_of(On.KUBERNETES, "launch")


def test_every_place_of_the_lists_is_there():
    assert all(callable(command_of(engine, name)) for engine, names in COMMANDS.items() for name in names)


def test_an_unknown_engine_in_a_spec_gets_its_line(tmp_path):
    (tmp_path / "a.yaml").write_text("cluster: {worker: 1, ps: 1}\non: kubernets\n")
    (tmp_path / "p.py").write_text("")
    with pytest.raises(SpecError, match=r"a\.yaml:2:1: on: expected local, ssh, slurm, kubernetes, trainer"):
        CliRunner().invoke(
            cli,
            ["plan", str(tmp_path / "a.yaml"), str(tmp_path / "p.py")],
            standalone_mode=False,
            catch_exceptions=False,
        )


def test_what_ends_with_its_launcher_cannot_be_detached(tmp_path):
    (tmp_path / "p.py").write_text("")
    with pytest.raises(SpecError, match="--detach: the tasks end with their launcher"):
        CliRunner().invoke(
            cli,
            ["launch", "--detach", "--run-dir", str(tmp_path / "run"), str(tmp_path / "p.py")],
            standalone_mode=False,
            catch_exceptions=False,
        )
    assert not (tmp_path / "run").exists()
