"""Every spec that is shipped can be used as it stands, and says what it is for."""

from pathlib import Path

from row_by_row import every_row

from dtrain_cli.spec import read_spec

SPECS = sorted((Path(__file__).parents[3] / "cluster_specs").glob("*.yaml"))


@every_row("path", SPECS, ids=lambda path: path.stem)
def test_a_shipped_spec_is_right_commented_and_named_after_its_file(path):
    spec = read_spec(path)
    assert spec.name == path.stem.replace("_", "-")
    text = path.read_text()
    assert text.startswith("# ")
    assert len(text.splitlines()) < 30


def test_backup_replicas_are_three_of_four():
    spec = read_spec(next(path for path in SPECS if path.stem == "laptop_sync_backup"))
    assert (spec.replicas, spec.training.replicas_needed(spec.replicas)) == (4, 3)


def test_the_spec_of_the_readme_takes_a_straggler():
    path = next(path for path in SPECS if path.stem == "laptop_sync_backup")
    assert read_spec(path, ["simulate.slow.worker:2=5"]).simulate.slow == {"worker:2": 5.0}
