"""The strategy of a launch without SPEC and --strategy: the one that the program constructs, by its syntax."""

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from dtrain_cli.commands.checks import check
from dtrain_cli.launch.options import LaunchOptions
from dtrain_cli.launch.request import read_request

TOLD = [
    ("import dtrain as tf\ns = tf.distribute.MirroredStrategy(['CPU:0'])", "mirrored", 2),
    ("import dtrain\n\ns = dtrain.MirroredStrategy()", "mirrored", 3),
    ("import dtrain.distribute as d\ns = d.experimental.CentralStorageStrategy()", "central_storage", 2),
    (
        "import dtrain.distribute\ns = dtrain.distribute.MultiWorkerMirroredStrategy()",
        "multi_worker_mirrored",
        2,
    ),
    ("from dtrain import distribute\ns = distribute.ParameterServerStrategy()", "parameter_server", 2),
    ("from dtrain.distribute import MirroredStrategy as M\nwith M().scope():\n    pass", "mirrored", 2),
    ("import dtrain as dt\nif __name__ == '__main__':\n    dt.MirroredStrategy()", "mirrored", 3),
    ("def f():\n    return tf.MirroredStrategy()\nimport dtrain as tf\ntf.MirroredStrategy()", "mirrored", 2),
]
NOT_TOLD = [
    "import dtrain as dt\ns = dt.get_strategy()",
    "import tensorflow as tf\ns = tf.distribute.MirroredStrategy()",
    "import dtrain as dt\ndt.MirroredStrategy()\ndt.distribute.MultiWorkerMirroredStrategy()",
    "import dtrain as dt\nimport sys\nif sys.argv[1:]:\n    s = dt.MirroredStrategy()",
    "import dtrain as dt\ns = dt.MirroredStrategy() if dt else None",
    "import dtrain as dt\nmake = dt.MirroredStrategy\ns = make()",
    "try:\n    import tensorflow as tf\nexcept ImportError:\n    import dtrain as tf\ns = tf.MirroredStrategy()",
    "import dtrain as dt\ns = dt.ParameterServerStrategy(**dict(strategy='single'))",
    "import dtrain as dt\ns = dt.ParameterServerStrategy(strategy='single')",
    "from .dtrain import MirroredStrategy\ns = MirroredStrategy()",
    "print('import dtrain as dt; dt.MirroredStrategy()', '\\d')",
]


@pytest.fixture
def launching(tmp_path):
    def launching(source):
        program = tmp_path / "train.py"
        program.write_text(f"{source}\nraise SystemExit('it is executed')\n")
        return LaunchOptions(program=program)

    return launching


@pytest.mark.parametrize(("source", "strategy", "line"), TOLD)
def test_the_strategy_that_a_program_constructs_is_taken_and_told(launching, source, strategy, line, capsys):
    options = launching(source)
    _, spec = read_request(options, {})
    assert spec.training.strategy == strategy
    assert (spec.cluster.count("ps") > 0) == (strategy == "parameter_server")
    assert capsys.readouterr().err == f"dtrain: strategy: {strategy}, as {options.program}:{line} says\n"


@pytest.mark.parametrize("source", NOT_TOLD)
def test_what_syntax_does_not_tell_is_launched_on_parameter_servers(launching, source, capsys):
    assert read_request(launching(source), {})[1].training.strategy == "parameter_server"
    assert capsys.readouterr().err == ""


def test_what_the_user_says_is_not_overruled(launching, tmp_path, capsys):
    options = launching(TOLD[0][0])
    (tmp_path / "s.yaml").write_text("cluster: {chief: 1, ps: 1}\n")
    said = (
        {"spec": tmp_path / "s.yaml"},
        {"shortcuts": {"strategy": "parameter_server"}},
        {"sets": ("training.strategy=parameter_server",)},
        {"sets": ("training={strategy: parameter_server}",)},
    )
    for each in said:
        assert read_request(replace(options, **each), {})[1].training.strategy == "parameter_server"
    assert read_request(replace(options, program=None, arguments=("x",)), {})[1].cluster.count("ps") > 0
    assert capsys.readouterr().err == ""


def test_check_says_the_same_of_a_program(launching):
    program = launching(TOLD[0][0]).program
    found = CliRunner().invoke(check, [str(program)])
    assert found.output == (
        f"dtrain: strategy: mirrored, as {program}:2 says\n"
        f"{program}: no mistakes; 1 chief, 1 evaluator; mirrored\n"
    )
    servers = CliRunner().invoke(check, ["--ps", "2", str(program)])
    assert "--ps 2: mirrored trains without parameter servers" in str(servers.exception)
    program.write_text("def")
    assert "the program does not compile" in str(CliRunner().invoke(check, [str(program)]).exception)
