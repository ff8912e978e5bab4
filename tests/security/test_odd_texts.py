"""Odd numbers and texts of specs, folders and web servers: each is refused in one plain sentence."""

import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from urllib.request import Request

import pytest
from row_by_row import every_row

import dtrain as dt
from dtrain.config import ClusterSection, RunSpec, SlurmSection
from dtrain.config.plain_data import too_little
from dtrain.data.stores import remote
from dtrain.data.stores.http_store import _Redirects
from dtrain.errors import InputError, SpecError
from dtrain_cli.spec import read_spec
from dtrain_cli.targets.slurm_jobs import JobScript

HUGE = "9" * 5000


@every_row(
    "name, text, sets",
    [
        ("s.yaml", f"wait: {{start_s: 0x{HUGE}}}", ()),
        ("s.yaml", f"wait: {{start_s: -0x{HUGE}}}", ()),
        ("s.yaml", f"wait: {{start_s: 1{'0' * 400}}}", ()),
        ("s.yaml", f"wait: {{start_s: {1 << 63}}}", ()),
        ("s.toml", f"wait.start_s = 0x{HUGE}", ()),
        ("s.toml", 'name = "a"\nwait.start_s = 2026-11-27', ()),
        ("s.yaml", "wait: {start_s: !!bool maybe}", ()),
        ("s.yaml", "wait: {start_s: !!timestamp maybe}", ()),
        ("s.yaml", "hosts: [a]", (f"hosts.{HUGE}=1",)),
        ("s.yaml", "cluster: {worker: ['a:1']}", (f"cluster.worker.{HUGE}.x=1",)),
        ("s.yaml", "hosts: n[1][1]" + "[1]" * 2000, ()),
    ],
)
def test_what_no_number_can_be_is_a_mistake_of_the_spec(tmp_path, name, text, sets):
    (tmp_path / name).write_text(text)
    with pytest.raises(SpecError) as caught:
        read_spec(tmp_path / name, sets)
    assert 0 < max(map(len, str(caught.value).splitlines())) <= 1003


def test_a_number_of_any_length_is_compared():
    assert too_little(10**400, 1) is None
    assert too_little(1, 1) is None
    for value in (float("nan"), float("inf"), 0):
        assert too_little(value, 1) == f"expected a number of at least 1, found {value}"


@pytest.mark.parametrize(
    "odd", ["evil\n#SBATCH --comment=x\ntouch PWNED;", "a\rb", "a\x1b]0;x\x07", "a\u2028b"]
)
def test_no_text_of_a_job_script_has_a_line_break_of_its_own(odd):
    spec = RunSpec(cluster=ClusterSection(chief=1), slurm=SlurmSection())
    texts = {"command": ["dtrain", "launch"], "cwd": Path("/data"), "out": Path("/o"), "err": Path("/e")}
    assert "--chdir=/data\n" in JobScript(spec, **texts).text()
    for name, sound in texts.items():
        changed = [*sound, odd] if name == "command" else sound / odd
        with pytest.raises(SpecError, match="control characters") as caught:
            JobScript(spec, **{**texts, name: changed}).text()
        assert str(caught.value).isprintable()


@contextmanager
def answering(code: int, reason: str, **headers: str):
    """Serve one answer to whatever is asked, and give the address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response_only(code, reason)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/x.txt"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.parametrize("code", [403, 404, 500])
def test_a_web_server_sends_no_control_characters_to_a_terminal(code, monkeypatch, capsys):
    monkeypatch.setattr(remote, "_wait_s", 0.01)
    with answering(code, "no\x1b]0;OWNED\x07\x9b31m") as url, pytest.raises(InputError) as caught:
        next(iter(dt.data.TextLineDataset(url)))
    assert r"no\x1b]0;OWNED\x07" in str(caught.value)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("place", ["ftp://127.0.0.1:1/x", "file:///etc/passwd", "data:,x"])
def test_a_web_server_sends_nobody_to_another_kind_of_address(place):
    with (
        answering(302, "Found", Location=place) as url,
        pytest.raises(InputError, match="cannot be read") as caught,
    ):
        next(iter(dt.data.TextLineDataset(url)))
    assert place.partition(":")[0] in str(caught.value)


def test_a_redirect_does_not_leave_tls():
    asked = Request("https://127.0.0.1/x")
    with pytest.raises(OSError, match="expected https, found http"):
        _Redirects().redirect_request(asked, None, 302, "Found", {}, "http://127.0.0.1/x")
    assert (
        _Redirects().redirect_request(asked, None, 302, "Found", {}, "https://127.0.0.1/y").host
        == "127.0.0.1"
    )


@pytest.mark.parametrize("url", ["http://[/x", "http://127.0.0.1:x/y", "http://127.0.0.1:1/a\nb"])
def test_what_is_no_url_is_refused_at_once(url, monkeypatch):
    monkeypatch.setattr(remote.time, "sleep", lambda _: pytest.fail("it is asked again"))
    with pytest.raises(InputError):
        next(iter(dt.data.TextLineDataset(url)))
