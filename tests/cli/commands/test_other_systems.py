"""A launch on an operating system that is not supported is refused in a sentence."""

import sys

import pytest

from dtrain_cli import main


def test_elsewhere_than_on_linux_a_launch_is_one_line_with_what_works_there(monkeypatch, tmp_path, capsys):
    program = tmp_path / "program.py"
    program.write_text("import dtrain as dt\n")
    monkeypatch.setattr(sys, "argv", ["dtrain", "launch", "--run-dir", str(tmp_path / "run"), str(program)])
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(main.streams, "make_plain", lambda: None)
    monkeypatch.setattr(main.gc, "freeze", lambda: None)
    with pytest.raises(SystemExit) as ended:
        main.main()
    assert ended.value.code == 1
    assert capsys.readouterr().err == (
        "dtrain: launch needs Linux; `python PROGRAM.py` trains here in one process\n"
    )
    assert not (tmp_path / "run").exists()
