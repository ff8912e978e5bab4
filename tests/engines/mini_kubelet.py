"""A small Kubernetes: runs the Jobs of manifests for real, each pod in namespaces of its own. Needs root.

It knows: Indexed Jobs and JobSets (each of their Jobs), index, host name and subdomain, arguments with $(NAME),
env with secretKeyRef, the volumes configMap (laid out as a kubelet does, with `..data`), secret, emptyDir and
claim, podFailurePolicy, backoffLimitPerIndex, maxFailedIndexes, success of a JobSet, SIGTERM to process 1 and
SIGKILL after the grace. A pod that is made again has a new address; its name is known only after a while, and
the resolver says NXDOMAIN until then. The pod of a node that is gone is Terminating 40 s and the seconds of its
toleration later, on a clock that runs `HURRY` times as fast; while the node's object lives, it is never replaced.
"""

import base64
import contextlib
import itertools
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engines.late_names import LateNames
from launching import PATIENCE_S

_NETWORK = "10.79.0"
# A pod has these of its own, or none. All other top-level folders are this machine's.
CHECKOUT = Path(__file__).parents[2]
_OWN_FOLDERS = {"dev", "etc", "proc", "run", "sys"}
_ETC = (
    "passwd",
    "group",
    "nsswitch.conf",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "ssl",
    "alternatives",
)
_numbers = itertools.count()
SILENT_S = 40.0
"""After so long a cluster takes a node that does not report for lost: --node-monitor-grace-period."""
HURRY = 60.0


def reason_against() -> str | None:
    """Why pods cannot be run here; None if they can."""
    if os.geteuid() != 0:
        return "needs root for network namespaces"
    if missing := [tool for tool in ("ip", "unshare", "mount", "chroot") if shutil.which(tool) is None]:
        return f"needs {', '.join(missing)}"
    name = f"dtk{os.getpid()}x"
    if subprocess.run(["ip", "netns", "add", name], capture_output=True).returncode:
        return "no network namespace can be made here"
    subprocess.run(["ip", "netns", "del", name], check=True)
    return None


def sweep() -> None:
    """Remove the network namespaces of tests that were killed: those whose process lives no more."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    for name in (line.split()[0] for line in listed.splitlines() if line.strip()):
        owner = re.fullmatch(r"dtk(\d+)(x|p\d+)?", name)
        if owner is not None and not Path("/proc", owner[1]).exists():
            # Another test may be faster.
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


@dataclass
class Pod:
    """One pod while it lives."""

    job: dict[str, Any]
    index: int
    namespace: str
    address: str
    process: subprocess.Popen[bytes]
    fails: int
    disrupted: bool = False
    told_s: float | None = None
    lost_s: float | None = None
    terminating: bool = False

    @property
    def name(self) -> str:
        return f"{self.job['metadata']['name']}-{self.index}"

    @property
    def spec(self) -> dict[str, Any]:
        return self.job["spec"]["template"]["spec"]

    def first_process(self) -> int | None:
        """The process that is number 1 in the pod, seen from here."""
        path = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        with contextlib.suppress(FileNotFoundError):
            children = path.read_text().split()
            return int(children[0]) if children else None
        return None


@dataclass
class Kubelet:
    """Runs manifests below a folder, in which each pod has its log."""

    folder: Path
    names_late_s: float = 0.0
    pods: dict[str, Pod] = field(default_factory=dict)
    ends: list[tuple[str, int]] = field(default_factory=list)
    failed_jobs: list[str] = field(default_factory=list)
    done: dict[str, set[int]] = field(default_factory=dict)
    events: list[str] = field(default_factory=list)

    def __enter__(self) -> "Kubelet":
        self.folder.mkdir(parents=True, exist_ok=True)
        sweep()
        self._began_s = time.monotonic()
        self._key = f"dtk{os.getpid()}"
        self._hosts = iter(range(10, 250))
        self._late: list[tuple[float, str, str]] = []
        self._objects: list[dict[str, Any]] = []
        self._jobs: dict[str, dict[str, Any]] = {}
        self._ip(f"netns add {self._key}")
        # With an address of its own: else it changes with the pods, and names cannot be asked for half a minute.
        self._ip(f"-n {self._key} link add br0 address 02:00:00:00:00:01 type bridge")
        self._ip(f"-n {self._key} addr add {_NETWORK}.1/24 dev br0")
        self._ip(f"-n {self._key} link set br0 up")
        self._ip(f"-n {self._key} link set lo up")
        self.names = LateNames(self._key, f"{_NETWORK}.1")
        return self

    def __exit__(self, *_: object) -> None:
        for pod in list(self.pods.values()):
            pod.process.kill()
            pod.process.wait()
            self._ip(f"netns del {pod.namespace}")
        self.names.close()
        self._ip(f"netns del {self._key}")

    def apply(self, objects: list[dict[str, Any]]) -> None:
        """Store the objects and start the pods of all Jobs."""
        self._objects = objects
        for job in self._jobs_of(objects):
            self._jobs[job["metadata"]["name"]] = job
            for index in range(job["spec"]["completions"]):
                self._start(job, index, 0)

    def delete_pods(self) -> None:
        """SIGTERM to process 1 of every pod at once, as a drained cluster does."""
        for pod in self.pods.values():
            self._tell(pod)

    def lose(self, name: str) -> None:
        """A pod's node is gone: its processes end at once, and nothing is sent to its peers."""
        self._ip(f"-n {self.pods[name].namespace} link set eth0 down")
        self.pods[name].process.kill()
        self.pods[name].process.wait()
        self.pods[name].lost_s = time.monotonic()

    def remove_node(self, name: str) -> None:
        """The object of a lost pod's node is deleted, or the pod by force: now its Job may make it again."""
        pod = self.pods.pop(name)
        assert pod.terminating, "its node still counts as healthy"
        self._ip(f"netns del {pod.namespace}")
        self._start(pod.job, pod.index, pod.fails)

    def run_until(self, condition: Callable[[], Any], what: str, within_s: float = PATIENCE_S) -> None:
        deadline = time.monotonic() + within_s
        while not condition():
            assert time.monotonic() < deadline, f"waited {within_s:g} s for {what}\n{self.story()}"
            self.turn()
            time.sleep(0.02)

    def turn(self) -> None:
        """Look once at everything: names that are due, pods that have ended, graces that are over."""
        now_s = time.monotonic()
        for due in [each for each in self._late if each[0] <= now_s]:
            self._late.remove(due)
            self.names.addresses[due[1]] = due[2]
        for pod in list(self.pods.values()):
            if pod.lost_s is not None:
                pod.terminating = (now_s - pod.lost_s) * HURRY > SILENT_S + _tolerated_s(pod)
            elif (code := pod.process.poll()) is not None:
                self._ended(pod, code if code >= 0 else 128 - code)
            elif pod.told_s and now_s - pod.told_s > pod.spec["terminationGracePeriodSeconds"]:
                self._note(f"{pod.name} is killed after its grace")
                pod.process.kill()

    def log(self, name: str) -> str:
        path = self.folder / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def story(self) -> str:
        """Everything that has happened and been written, for a test that fails."""
        logs = [
            f"--- {path.stem}\n{path.read_text(errors='replace')[-3000:]}"
            for path in sorted(self.folder.glob("*.log"))
        ]
        return "\n".join([*self.events, *logs])

    def claim(self, name: str) -> Path:
        """The folder behind a claim."""
        return self.folder / "claims" / name

    def _note(self, text: str) -> None:
        self.events.append(f"{time.monotonic() - self._began_s:6.2f} {text}")

    def _ip(self, words: str) -> None:
        subprocess.run(["ip", *words.split()], check=True)

    def _jobs_of(self, objects: list[dict[str, Any]]) -> list[dict[str, Any]]:
        jobs = [each for each in objects if each["kind"] == "Job"]
        for whole in (each for each in objects if each["kind"] == "JobSet"):
            for part in whole["spec"]["replicatedJobs"]:
                metadata = {"name": f"{whole['metadata']['name']}-{part['name']}-0", "role": part["name"]}
                jobs.append({"metadata": metadata, "spec": part["template"]["spec"]})
        return jobs

    def _start(self, job: dict[str, Any], index: int, fails: int) -> None:
        host = next(self._hosts)
        namespace, address = f"{self._key}p{host}", f"{_NETWORK}.{host}"
        link = f"v{host}"
        self._ip(f"netns add {namespace}")
        self._ip(f"-n {self._key} link add {link} type veth peer name eth0 netns {namespace}")
        self._ip(f"-n {self._key} link set {link} master br0 up")
        self._ip(f"-n {namespace} addr add {address}/24 dev eth0")
        self._ip(f"-n {namespace} link set eth0 up")
        self._ip(f"-n {namespace} link set lo up")
        spec, name = job["spec"]["template"]["spec"], f"{job['metadata']['name']}-{index}"
        self.names.addresses.pop(f"{name}.{spec['subdomain']}", None)
        self._late.append((time.monotonic() + self.names_late_s, f"{name}.{spec['subdomain']}", address))
        root = self._root(spec, name)
        environment = self._environment(spec["containers"][0], index, name)
        words = [_expanded(word, environment) for word in spec["containers"][0]["args"]]
        command = ["/usr/bin/env", "-i", *(f"{k}={v}" for k, v in environment.items())]
        command += [sys.executable, "-m", "dtrain_cli.main", *words]
        script = self._script(root, name, spec["subdomain"], command)
        with open(self.folder / f"{name}.log", "ab") as log:
            process = subprocess.Popen(
                ["ip", "netns", "exec", namespace, "unshare", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child", "bash", "-ec", script],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        self.pods[name] = Pod(job, index, namespace, address, process, fails)
        self._note(f"{name} starts at {address}")

    def _script(self, root: Path, name: str, subdomain: str, command: list[str]) -> str:
        """The commands that lay out a pod's file system around ours, and become its process 1."""
        at = shlex.quote(str(root))
        lines = [f"hostname {name}", "mount --make-rprivate /", f"mount --bind {at} {at}"]
        for path in Path("/").iterdir():  # the checkout may be in any of them
            if path.is_dir() and path.name not in _OWN_FOLDERS and str(path) not in self._mounts[name]:
                here, there = shlex.quote(str(path)), shlex.quote(f"{root}{path}")
                lines.append(f"mkdir -p {there}; mount --rbind {here} {there}")
        lines += [f"mount --rbind /dev {at}/dev", f"mount -t proc proc {at}/proc"]
        lines += [
            f"mount --bind {shlex.quote(str(here))} {at}{there}" for there, here in self._mounts[name].items()
        ]
        for path in (Path(sys.prefix), CHECKOUT):  # an image has them; here they may lie below a volume
            if any(path.is_relative_to(mounted) for mounted in self._mounts[name]):
                here, there = shlex.quote(str(path)), shlex.quote(f"{root}{path}")
                lines.append(f"mkdir -p {there}; mount --rbind {here} {there}")
        lines.append(f"mount -o remount,bind,ro {at}")
        lines.append(f"exec chroot {at} {shlex.join(command)}")
        return "\n".join(lines)

    def _root(self, spec: dict[str, Any], name: str) -> Path:
        number = next(_numbers)
        root = self.folder / "roots" / f"{name}-{number}"
        for each in ("etc", "dev", "proc"):
            (root / each).mkdir(parents=True)
        for each in (Path("/etc", name) for name in _ETC):
            if each.is_dir():
                shutil.copytree(each, root / "etc" / each.name, symlinks=True)
            elif each.exists():
                shutil.copy(each, root / "etc" / each.name)
        (root / "etc/hosts").write_text("127.0.0.1 localhost\n")
        search = "search default.svc.cluster.local svc.cluster.local cluster.local\noptions ndots:5\n"
        (root / "etc/resolv.conf").write_text(f"nameserver {_NETWORK}.1\n{search}")
        self._mounts = getattr(self, "_mounts", {})
        self._mounts[name] = {}
        volumes = {volume["name"]: volume for volume in spec["volumes"]}
        for mount in spec["containers"][0]["volumeMounts"]:
            here = self._volume(volumes[mount["name"]], root, spec["securityContext"])
            self._mounts[name][mount["mountPath"]] = here
            (root / mount["mountPath"].lstrip("/")).mkdir(parents=True)
        return root

    def _volume(self, volume: dict[str, Any], root: Path, security: dict[str, Any]) -> Path:
        if "persistentVolumeClaim" in volume:
            folder = self.claim(volume["persistentVolumeClaim"]["claimName"])
            folder.mkdir(parents=True, exist_ok=True)
            _give_to_group(folder, security)
            return folder
        folder = Path(f"{root}-volumes", volume["name"])
        folder.mkdir(parents=True)
        if "emptyDir" in volume:
            return folder
        contents, items, mode = self._contents(volume)
        data = folder / "..2026_11_22"
        for item in items:
            path = data / item["path"]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(contents[item["key"]])
            path.chmod(mode)
        (folder / "..data").symlink_to("..2026_11_22")
        for top in data.iterdir():
            (folder / top.name).symlink_to(Path("..data", top.name))
        return folder

    def _contents(self, volume: dict[str, Any]) -> tuple[dict[str, bytes], list[dict[str, str]], int]:
        if "configMap" in volume:
            found = self._object("ConfigMap", volume["configMap"]["name"])
            contents = {key: text.encode() for key, text in found["data"].items()}
            contents |= {key: base64.b64decode(text) for key, text in found.get("binaryData", {}).items()}
            return contents, volume["configMap"]["items"], 0o644
        secret = volume["secret"]
        data = self._object("Secret", secret["secretName"])["stringData"]
        return {key: text.encode() for key, text in data.items()}, secret["items"], secret["defaultMode"]

    def _object(self, kind: str, name: str) -> dict[str, Any]:
        return next(
            each for each in self._objects if (each["kind"], each["metadata"]["name"]) == (kind, name)
        )

    def _environment(self, container: dict[str, Any], index: int, name: str) -> dict[str, str]:
        environment = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "HOSTNAME": name}
        environment |= {"JOB_COMPLETION_INDEX": str(index), "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
        for entry in container["env"]:
            source = entry.get("valueFrom", {}).get("secretKeyRef")
            secret = source and self._object("Secret", source["name"])["stringData"][source["key"]]
            environment[entry["name"]] = secret if source else _expanded(entry["value"], environment)
        return environment

    def _tell(self, pod: Pod) -> None:
        if (first := pod.first_process()) is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(first, signal.SIGTERM)
        pod.told_s = time.monotonic()
        pod.disrupted = True

    def _ended(self, pod: Pod, code: int) -> None:
        del self.pods[pod.name]
        self._ip(f"netns del {pod.namespace}")
        self.ends.append((pod.name, code))
        self._note(f"{pod.name} has ended with {code}")
        job, name = pod.job, pod.job["metadata"]["name"]
        if code == 0:
            self.done.setdefault(name, set()).add(pod.index)
            self._end_jobset()
        if code == 0 or pod.told_s:
            return
        what = _action(pod, code)
        fails = pod.fails + (what == "Count")
        if what in ("FailJob", "FailIndex") or fails > job["spec"]["backoffLimitPerIndex"]:
            if what == "FailJob" or job["spec"].get("maxFailedIndexes") == 0:
                self.failed_jobs.append(name)
                for other in [each for each in self.pods.values() if each.job is job]:
                    self._tell(other)
            return
        self._start(job, pod.index, fails)

    def _end_jobset(self) -> None:
        """Tell the pods of a JobSet that is still running when those that count have succeeded."""
        for whole in (each for each in self._objects if each["kind"] == "JobSet"):
            jobs = {job["metadata"]["role"]: job for job in self._jobs.values()}
            targets = [jobs[role] for role in whole["spec"]["successPolicy"]["targetReplicatedJobs"]]
            if all(
                len(self.done.get(job["metadata"]["name"], ())) == job["spec"]["completions"]
                for job in targets
            ):
                for pod in self.pods.values():
                    self._tell(pod)


def _tolerated_s(pod: Pod) -> float:
    """How long the pod stays on a node that is unreachable; a cluster adds 300 s where nothing is said."""
    said = {each["key"]: each["tolerationSeconds"] for each in pod.spec.get("tolerations", ())}
    return float(said.get("node.kubernetes.io/unreachable", 300))


def _give_to_group(folder: Path, security: dict[str, Any]) -> None:
    """Make a disk writable for the pod's group, as a kubelet does; all of it unless only its root is looked at."""
    if security.get("fsGroupChangePolicy") == "OnRootMismatch" and folder.stat().st_mode & 0o2770 == 0o2770:
        return
    for path in (folder, *folder.rglob("*")):
        path.chmod(path.stat().st_mode | (0o2770 if path.is_dir() else 0o660))


def _expanded(word: str, environment: dict[str, str]) -> str:
    """An argument as Kubernetes expands it: $(NAME), and $$ for a dollar."""
    replaced = lambda found: "$" if found[0] == "$$" else environment.get(found[1], found[0])  # noqa: E731
    return re.sub(r"\$\$|\$\((\w+)\)", replaced, word)


def _action(pod: Pod, code: int) -> str:
    """What the podFailurePolicy says: the first rule that fits."""
    for rule in pod.job["spec"]["podFailurePolicy"]["rules"]:
        if "onPodConditions" in rule and pod.disrupted:
            return rule["action"]
        if "onExitCodes" in rule and code in rule["onExitCodes"]["values"] and not pod.disrupted:
            return rule["action"]
    return "Count"
