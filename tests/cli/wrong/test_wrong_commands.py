"""What a launch says of a command that is there and cannot begin."""


def test_an_interpreter_that_is_not_there_is_named_as_such(launcher, tmp_path):
    script = tmp_path / "c"
    script.write_text("#!/no/such/sh\n")
    script.chmod(0o700)
    launch = launcher.start("--ps", "0", "--workers", "0", "--", "./c")
    assert launch.end() == 127
    assert "cannot execute ./c: its first line names an interpreter that is not there" in launch.err
    assert launch.pids() == []
