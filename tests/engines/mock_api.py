"""A mock of the API of Kubernetes over HTTP: discovery, objects by label, logs. kubectl itself speaks to it.

Where kubectl is not installed, `install_kubectl` writes a small command of that name, which makes the same
requests for the words that dtrain uses.
"""

import json
import re
import shutil
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

KINDS = {
    "pods": ("Pod", "", "v1"), "services": ("Service", "", "v1"), "configmaps": ("ConfigMap", "", "v1"),
    "secrets": ("Secret", "", "v1"), "persistentvolumeclaims": ("PersistentVolumeClaim", "", "v1"),
    "jobs": ("Job", "batch", "v1"), "jobsets": ("JobSet", "jobset.x-k8s.io", "v1alpha2"),
    "events": ("Event", "", "v1"), "networkpolicies": ("NetworkPolicy", "networking.k8s.io", "v1"),
}  # fmt: skip
_OBJECT = re.compile(r"/api(?:s/[^/]+)?/\w+/namespaces/(\w+)/(\w+)(?:/([^/]+))?(/log)?$")


class MockApi:
    """Objects by plural and name; `logs` by pod. A context manager that listens on a port of loopback."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str], dict[str, Any]] = {}
        self.logs: dict[str, str] = {}
        self.requests: list[str] = []
        self.refuses: str | None = None
        self.down = False

    def __enter__(self) -> "MockApi":
        api = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: object) -> None:
                pass

            def do_GET(self) -> None:
                self._answer("GET")

            def do_POST(self) -> None:
                self._answer("POST")

            def do_PATCH(self) -> None:
                self._answer("PATCH")

            def do_DELETE(self) -> None:
                self._answer("DELETE")

            def _answer(self, method: str) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                code, answer = api.answer(method, self.path, json.loads(body) if body else None)
                data = answer.encode() if isinstance(answer, str) else json.dumps(answer).encode()
                self.send_response(code)
                self.send_header(
                    "Content-Type", "text/plain" if isinstance(answer, str) else "application/json"
                )
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def answer(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        split = urlsplit(path)
        if self.down:
            return 503, _status(503, "ServiceUnavailable", "the mock is down")
        if found := _discovery(split.path):
            return 200, found
        place = _OBJECT.match(split.path)
        if place is None:
            return 404, _status(404, "NotFound", "the mock has no such path")
        _, plural, name, log = place.groups()
        self.requests.append(f"{method} {plural}{'/' + name if name else ''}")
        if log:
            return 200, self.logs.get(name, "")
        if method == "POST":
            if self.refuses == plural:
                return 403, _status(403, "Forbidden", f"{plural} is forbidden: quota is exhausted")
            key = (plural, body["metadata"]["name"])
            uid = self.objects[key]["metadata"]["uid"] if key in self.objects else f"u-{len(self.objects)}"
            body["metadata"] |= {"uid": uid, "creationTimestamp": "2026-01-01T00:00:00Z"}
            self.objects[key] = body
            return 201, body
        if name is None:
            return 200, self._list(plural, parse_qs(split.query).get("labelSelector", [""])[0])
        found = self.objects.get((plural, name))
        if found is None:
            return 404, _status(404, "NotFound", f"{plural} {name} not found")
        if method == "DELETE":
            self.collect(plural, name)
            return 200, _status(200, "", "")
        if method == "PATCH":
            for part in ("spec", "metadata"):
                found.setdefault(part, {}).update(body.get(part) or {})
        return 200, found

    def collect(self, plural: str, name: str) -> None:
        """Remove an object, its pods, and what it owns, as the garbage collector does."""
        uid = self.objects.pop((plural, name))["metadata"]["uid"]
        pods = [key for key in self.objects if key[0] == "pods"] if plural in ("jobs", "jobsets") else []
        owned = [
            key
            for key, each in self.objects.items()
            if uid in [owner["uid"] for owner in each["metadata"].get("ownerReferences") or ()]
        ]
        for key in [*pods, *owned]:
            if key in self.objects:
                self.collect(*key)

    def _list(self, plural: str, selector: str) -> dict[str, Any]:
        kind, group, version = KINDS[plural]
        wanted = dict(each.split("=", 1) for each in selector.split(",") if each)
        items = [
            {"kind": kind, **each}
            for (of, _), each in self.objects.items()
            if of == plural and wanted.items() <= each["metadata"].get("labels", {}).items()
        ]
        api_version = f"{group}/{version}" if group else version
        return {"kind": f"{kind}List", "apiVersion": api_version, "metadata": {}, "items": items}

    def of_kind(self, plural: str) -> list[dict[str, Any]]:
        return [each for (of, _), each in self.objects.items() if of == plural]

    def add_pods(self, phase: str = "Running") -> None:
        """Make the pods of all Jobs, as its controller would."""
        for job in self.of_kind("jobs"):
            template = job["spec"]["template"]
            for index in range(job["spec"]["completions"]):
                name = f"{job['metadata']['name']}-{index}-abcde"
                labels = {
                    **template["metadata"]["labels"],
                    "batch.kubernetes.io/job-completion-index": str(index),
                }
                metadata = {
                    "name": name,
                    "namespace": "default",
                    "uid": name,
                    "labels": labels,
                    "creationTimestamp": "2026-01-01T00:00:00Z",
                }
                self.objects["pods", name] = {
                    "apiVersion": "v1",
                    "kind": "Pod",
                    "metadata": metadata,
                    "spec": {"nodeName": "n1", "containers": [{"name": "dtrain"}]},
                    "status": {"phase": phase},
                }

    def end(self, role: str, code: int) -> None:
        """All pods of a role end, and their Job with them."""
        for pod in self.of_kind("pods"):
            if pod["metadata"]["labels"]["dtrain.dev/role"] == role:
                ended = {
                    "name": "dtrain",
                    "state": {"terminated": {"exitCode": code, "reason": "Error" if code else "Completed"}},
                }
                pod["status"] = {"phase": "Failed" if code else "Succeeded", "containerStatuses": [ended]}
        for job in self.of_kind("jobs"):
            if job["spec"]["template"]["metadata"]["labels"]["dtrain.dev/role"] == role:
                kind = "Failed" if code else "Complete"
                job["status"] = {
                    "conditions": [{"type": kind, "status": "True", "message": f"the Job is {kind}"}]
                }


def _status(code: int, reason: str, message: str) -> dict[str, Any]:
    status = "Success" if code < 300 else "Failure"
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "status": status,
        "code": code,
        "reason": reason,
        "message": message,
    }


def _discovery(path: str) -> dict[str, Any] | None:
    groups = {("batch", "v1"), ("jobset.x-k8s.io", "v1alpha2"), ("networking.k8s.io", "v1")}
    if path == "/version":
        return {"major": "1", "minor": "34", "gitVersion": "v1.34.0"}
    if path == "/api":
        return {"kind": "APIVersions", "versions": ["v1"]}
    if path == "/apis":
        listed = [
            {"name": g, "versions": [{"groupVersion": f"{g}/{v}", "version": v}]} for g, v in sorted(groups)
        ]
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": listed}
    for group, version in (("", "v1"), *groups):
        if path == (f"/apis/{group}/{version}" if group else "/api/v1"):
            resources = [
                {"name": plural, "singularName": kind.lower(), "kind": kind, "namespaced": True,
                 "verbs": ["create", "delete", "get", "list", "patch", "watch"]}
                for plural, (kind, of, _) in KINDS.items() if of == group
            ]  # fmt: skip
            return {
                "kind": "APIResourceList",
                "groupVersion": f"{group}/{version}" if group else version,
                "resources": resources,
            }
    return None


_COMMAND = """#!{python}
import json, sys
from urllib.request import Request, urlopen
from urllib.error import HTTPError
URL, GROUPS = {url!r}, {groups!r}

def ask(method, plural, name="", body=None, query=""):
    path = f"{{GROUPS[plural]}}/namespaces/default/{{plural}}{{name and '/' + name}}{{query}}"
    data = None if body is None else json.dumps(body).encode()
    try:
        with urlopen(Request(URL + path, data, method=method)) as answer:
            return answer.read().decode()
    except HTTPError as error:
        if error.code == 404 and "--ignore-not-found" in sys.argv:
            return ""
        sys.exit("Error from server: " + json.loads(error.read())["message"])

words = sys.argv[1:]
def kind(word):
    word = word.split(".")[0]
    return word[:-1] + "ies" if word.endswith("y") else word if word.endswith("s") else word + "s"

label = "?labelSelector=" + words[words.index("-l") + 1] if "-l" in words else ""
listed = lambda plural: json.loads(ask("GET", plural, query=label))["items"]
match words[0]:
    case "apply":
        for each in json.load(sys.stdin)["items"]:
            ask("POST", kind(each["kind"].lower()), body=each)
    case "get" if "/" in words[1]:
        print(json.loads(ask("GET", kind(words[1].split("/")[0]), words[1].split("/")[1]))["metadata"]["uid"], end="")
    case "get":
        found = [each for word in words[1].split(",") for each in listed(kind(word))]
        names = "".join(f"job.batch/{{each['metadata']['name']}}\\n" for each in found)
        print(names if words[-1] == "name" else json.dumps({{"items": found}}))
    case "logs":
        begin = f"[pod/{{words[1]}}/dtrain] " if "--prefix" in words else ""
        for line in ask("GET", "pods", words[1] + "/log").splitlines():
            sys.stdout.write(begin + line + "\\n")  # a line and its end at once, as kubectl
    case "patch":
        ask("PATCH", "jobs", words[1].split("/")[1], json.loads(words[-1]))
    case "delete":
        for word in words[1].split(","):
            for each in listed(kind(word)):
                ask("DELETE", kind(word), each["metadata"]["name"])
    case "exec":
        print(open({told!r}).read())
"""


def install_kubectl(folder: Path, url: str, real: bool) -> None:
    """Put a command kubectl into a folder: the installed one, told of the mock, or the small one."""
    folder.mkdir(exist_ok=True)
    path = folder / "kubectl"
    if real:
        there = shutil.which("kubectl")
        # The mock has no OpenAPI, with which kubectl would validate what it applies.
        path.write_text(
            f'#!/bin/sh\ncase "$1" in apply) set -- "$@" --validate=false;; esac\nexec {there} --kubeconfig=/dev/null --server={url} "$@"\n'
        )
    else:
        groups = {plural: f"/apis/{g}/{v}" if g else "/api/v1" for plural, (_, g, v) in KINDS.items()}
        path.write_text(
            _COMMAND.format(python=sys.executable, url=url, groups=groups, told=str(folder / "told.json"))
        )
    path.chmod(0o755)
