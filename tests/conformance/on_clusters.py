"""Programs of the conformance tests on real clusters."""

from pathlib import Path

from conformance.golden import golden_dir


def cluster_of(launcher, monkeypatch, program, name, replicas, servers, options):
    """Run a program in a synchronous cluster to its end, with these golden files; nothing is left of it."""
    monkeypatch.setenv("DTRAIN_GOLDEN", str(golden_dir().resolve()))
    lines = program.format(tests=str(Path(__file__).parents[1])).splitlines()
    (launcher.folder / "program.py").write_text("\n".join(line[4:] for line in lines))
    sets = [word for option in options for word in ("--set", option)]
    size = ("--workers", str(replicas - 1), "--ps", str(servers), "--updates", "sync", "--no-evaluator")
    launch = launcher.start(*size, *sets, "program.py", name)
    assert launch.end() == 0, launch.err
    launch.wait_gone()
