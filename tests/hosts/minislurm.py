"""A Slurm whose nodes are the hosts of a rig: slurmctld and the user on h0, a slurmd on each other host.

Nodes are lost when their host is cut off or killed, and a job may be requeued without the usual wait of two minutes.
Jobs of the partition `urgent` take the nodes of others, after 60 s of grace.
"""

import os
import shutil
import subprocess
from types import TracebackType

import pytest
from hosts.rig import Rig
from hosts.rig import missing as missing_hosts
from launching import wait_until

PROGRAMS = ("munged", "sbatch", "scontrol", "slurmctld", "slurmd", "srun")
KILL_WAIT_S = 15
_AFTER_REVOCATION_S = 3
"""A node takes no credential of a job that is not younger, in whole seconds, than the job's last end there."""
_CONF = """\
ClusterName=test
SlurmctldHost=h0({address})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
CredType=cred/munge
StateSaveLocation={folder}/ctld
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
MpiDefault=none
SwitchType=switch/none
SchedulerParameters=sched_interval=1,sched_min_interval=0,batch_sched_delay=0,bf_interval=1
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
ReturnToService=2
SlurmdTimeout=6
KillWait={kill_wait}
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
"""


def missing() -> str | None:
    """Why there can be no Slurm here; None if there can be one."""
    if reason := missing_hosts():
        return reason
    absent = [name for name in PROGRAMS if shutil.which(name) is None]
    return f"{', '.join(absent)} not installed (slurmctld, slurmd, slurm-client, munge)" if absent else None


needs_slurm = pytest.mark.skipif(reason is not None, reason=str(reason)) if (reason := missing()) else []
"""Marks a module whose tests run on a Slurm: ``pytestmark = needs_slurm``."""


class MiniSlurm:
    """The Slurm of a rig. A context manager; it ends with the rig's hosts."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.folder = rig.folder / "slurm"
        self.environment = {"SLURM_CONF": str(self.folder / "slurm.conf")}
        self._daemons: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> "MiniSlurm":
        self.folder.mkdir()
        (self.folder / "ctld").mkdir()
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        conf = _CONF.format(folder=self.folder, address=self.rig.address("h0"), kill_wait=KILL_WAIT_S)
        for name in self.rig.names:
            (self.folder / f"spool-{name}").mkdir()
            conf += (
                f"NodeName={name} NodeAddr={self.rig.address(name)} CPUs=8 RealMemory=8192 State=UNKNOWN\n"
            )
        conf += (
            "PartitionName=test Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1 GraceTime=60\n"
        )
        conf += "PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=10\n"
        (self.folder / "slurm.conf").write_text(conf)
        try:
            self._start_daemons()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the daemons; what jobs have left ends with the hosts."""
        for daemon in self._daemons:
            daemon.kill()
            daemon.wait()
        self._daemons.clear()

    def run(self, *words: str, check: bool = True) -> "subprocess.CompletedProcess[str]":
        """Run a command on h0, to its end."""
        return self.rig.run(
            "h0", "env", *(f"{k}={v}" for k, v in self.environment.items()), *words, check=check
        )

    def job(self, number: str) -> dict[str, str]:
        """What Slurm knows of a job; nothing if it knows none."""
        shown = self.run("scontrol", "show", "job", "-o", number, check=False).stdout
        return dict(word.split("=", 1) for word in shown.split() if "=" in word)

    def await_state(self, number: str, *states: str) -> dict[str, str]:
        """Wait until a job is in one of these states."""
        found: dict[str, str] = {}

        def there() -> bool:
            found.update(self.job(number))
            return found.get("JobState") in states

        wait_until(there, f"job {number} to be {' or '.join(states)}")
        return found

    def start_now(self, number: str) -> None:
        """Let a requeued job start soon, which Slurm does after two minutes."""

        def asked() -> bool:
            when = f"StartTime=now+{_AFTER_REVOCATION_S}seconds"
            return self.run("scontrol", "update", f"JobId={number}", when, check=False).returncode == 0

        def began() -> bool:
            return self.job(number).get("JobState") != "PENDING"

        wait_until(lambda: began() or asked(), f"job {number} to be asked to begin again")
        wait_until(began, f"job {number} to begin again")

    def start_node(self, name: str) -> None:
        """Start the daemon of a node, also after its host was killed."""
        self._daemon(name, "slurmd", "-D", "-N", name)

    def _start_daemons(self) -> None:
        sock = self.folder / "munge.sock"
        self._daemon(
            "h0",
            *("munged", "--foreground", "--force", f"--socket={sock}", f"--key-file={self.folder}/munge.key"),
            *(f"--{name}-file={self.folder}/munged.{name}" for name in ("pid", "log", "seed")),
        )
        wait_until(sock.exists, "munged")
        self._daemon("h0", "slurmctld", "-D", "-c")
        for name in self.rig.names:
            self.start_node(name)
        wait_until(self._all_idle, "the nodes to be idle")

    def _all_idle(self) -> bool:
        idle = self.run("sinfo", "-h", "-N", "-p", "test", "-t", "idle", check=False).stdout.splitlines()
        return len(idle) == len(self.rig.names)

    def _daemon(self, host: str, *words: str) -> None:
        die = ("setpriv", "--pdeathsig", "KILL")
        with (self.folder / f"{host}-{words[0]}.out").open("ab") as out:
            self._daemons.append(
                subprocess.Popen(
                    [*die, *self.rig.wrapper(host), *die, *words],
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                    env={**os.environ, **self.environment},
                )
            )
