"""A first run: what `dtrain demo`, `init` and `examples` promise a stranger who has no clone."""

import ast
import json
import re
import signal
from pathlib import Path

import pytest
from answers import is_of
from launching import wait_until
from net.commands import dtrain

from dtrain_cli import shipped

EXAMPLES = Path(__file__).parents[3] / "examples"


def words_of_files(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.long("the whole demo: a training in which two tasks die and come back")
def test_the_demo_kills_two_tasks_and_trains_to_the_end(launcher):
    demo = launcher.dtrain("demo", "--json", "--runs-dir", "kept")
    assert demo.end() == 0, demo.err
    demo.wait_gone()
    report = json.loads(demo.out)
    is_of("demo", report)
    assert (report["state"], report["global_step"]) == ("succeeded", 1500)
    restarts = {task["task"]: task["restarts"] for task in report["tasks"] if task["restarts"]}
    assert restarts == {"worker:1": 1, "ps:1": 1}
    assert report["rolled_back_steps"] > 0
    told = " ".join(demo.err.split())
    assert all(len(line) <= 80 or report["run_dir"] in line for line in demo.err.splitlines())
    for words in (
        r"worker:1 is killed",
        r"no example is lost",
        r"ps:1 is killed",
        r"epoch 10 of 10: loss 0\.\d+",
    ):
        assert re.search(words, told), demo.err
    back = re.search(r"go back from step (\d+) to the checkpoint of step (\d+)", told)
    assert int(back[1]) - int(back[2]) == report["rolled_back_steps"]
    assert f"{report['rolled_back_steps']} of them twice" in told
    page = Path(report["run_dir"]) / "report.html"
    assert str(page) in demo.err
    assert "uPlot" in (launcher.folder / page).read_text()
    listed = launcher.dtrain("runs", "--json", "--runs-dir", "kept")
    assert listed.end() == 0, listed.err
    assert [run["run"] for run in json.loads(listed.out)] == [report["run"]]


def test_ctrl_c_ends_the_demo_and_all_that_it_has_started(launcher):
    demo = launcher.dtrain("demo", "--runs-dir", "kept")
    records = launcher.folder / "kept"
    wait_until(lambda: list(records.glob("*/tasks/worker-0/status.json")), "a worker of the demo")
    demo.send(signal.SIGINT)
    assert demo.end() == 130, demo.err
    demo.wait_gone()
    assert "nothing of it is left running" in demo.err


def test_a_program_to_start_from_trains_alone_and_on_a_cluster(launcher):
    made = launcher.dtrain("init", "mine")
    assert made.end() == 0, made.err
    folder = launcher.folder / "mine"
    assert words_of_files(folder) == {"train.py", "cluster.yaml"}
    for command in ("python train.py", "dtrain launch cluster.yaml train.py", "cd mine"):
        assert command in made.out
    checked = launcher.dtrain("check", "mine/cluster.yaml")
    assert checked.end() == 0, checked.err
    launch = launcher.start("mine/cluster.yaml", "mine/train.py", "--epochs", "8")
    assert launch.end() == 0, launch.err
    (error,) = re.findall(r"held out: loss [\d.]+, mean absolute error ([\d.]+)", launch.log("chief:0"))
    assert float(error) < 0.9  # a mean alone has 0.98
    assert (launcher.folder / "model.safetensors").exists()


def test_nothing_of_the_users_is_overwritten(tmp_path):
    (tmp_path / "cluster.yaml").write_text("mine: 1\n")
    code, _, err = dtrain("init", folder=tmp_path)
    assert (code, words_of_files(tmp_path)) == (2, {"cluster.yaml"})
    assert "cluster.yaml: exists and is another file" in err
    (tmp_path / "examples").mkdir()
    (tmp_path / "examples" / "digits.py").write_text("mine = 1\n")
    code, _, err = dtrain("examples", "mnist_mlp", folder=tmp_path)
    assert (code, words_of_files(tmp_path)) == (2, {"cluster.yaml", "examples/digits.py"})
    assert "digits.py: exists" in err


def test_what_is_there_already_may_be_written_again(tmp_path):
    assert dtrain("init", "a", folder=tmp_path)[0] == dtrain("init", "a", folder=tmp_path)[0] == 0
    assert (
        dtrain("examples", "digits", folder=tmp_path)[0]
        == dtrain("examples", "digits", folder=tmp_path)[0]
        == 0
    )


def test_every_program_among_the_examples_is_listed_with_a_sentence(tmp_path):
    code, out, err = dtrain("examples", folder=tmp_path)
    assert code == 0, err
    listed = dict(line.split(None, 1) for line in out.splitlines())
    programs = {path.stem for path in EXAMPLES.glob("*.py")} - {"images"}
    assert listed.keys() == programs | {"campaign"}
    assert all(text[0].isupper() and text.endswith(".") for text in listed.values()), listed


@pytest.mark.parametrize("example", [*shipped.examples()])
def test_a_copy_has_all_that_the_example_names(example, tmp_path):
    code, out, err = dtrain("examples", example, "--to", "there", folder=tmp_path)
    assert code == 0, err
    there = words_of_files(tmp_path / "there")
    assert {f"there/{path}" for path in there} == set(out.split())
    texts = {path: (tmp_path / "there" / path).read_bytes().decode(errors="replace") for path in there}
    for path, text in texts.items():
        assert text == (EXAMPLES.parent / path).read_bytes().decode(errors="replace")
        if path.endswith(".py"):
            imported = {
                node.module if isinstance(node, ast.ImportFrom) else node.names[0].name
                for node in ast.walk(ast.parse(text))
                if isinstance(node, ast.Import | ast.ImportFrom)
            }
            local = {f"examples/{name}.py" for name in imported if (EXAMPLES / f"{name}.py").exists()}
            assert local <= there, f"{path} imports them"
        for named in re.findall(r"cluster_specs/\w+\.yaml|\w+\.csv\.gz|\w+\.study\.yaml", text):
            assert any(each.endswith(named) for each in there), f"{path} names {named}"
    assert f"examples/{example}" in err


def test_who_names_no_example_is_told_which_there_are(tmp_path):
    code, _, err = dtrain("examples", "mnist", folder=tmp_path)
    assert code == 2
    assert "no example mnist" in err
    assert "mnist_cnn" in err
    code, _, err = dtrain("examples", "--to", "x", folder=tmp_path)
    assert code == 2
    assert "NAME" in err
