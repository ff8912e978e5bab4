"""A run's certificate authority, and the folders that it fills for tasks that are started by hand.

OUT/ca.crt what every task trusts OUT/authority/ca.key with which anybody is every task: keep it off the
hosts OUT/HOST/ca.crt the same again, so that one folder is all that a host needs OUT/HOST/worker-0.crt,
.key the certificate and the key (0600) of a task OUT/joining/worker-joined.* those of workers that join the
running cluster OUT/evaluator/evaluator-0.* those of an evaluator without an address
"""

import contextlib
import os
import re
import secrets
from pathlib import Path
from typing import TYPE_CHECKING

from dtrain.cluster import TaskId
from dtrain.cluster.spec import LeafNames, joined_worker, task_name
from dtrain.errors import SpecError
from dtrain.process.tls_material import read_tls_file

if TYPE_CHECKING:
    from dtrain_cli.certificates.by_library import Authority

AUTHORITY_DAYS = 365
_NO_LIBRARY = (
    "making certificates needs the package cryptography: `pip install -e '.[tls]'` in dtrain's clone"
)


def make_authority(run_id: str, days: int = AUTHORITY_DAYS) -> "Authority":
    """Make the authority of a run; raise a `SpecError` if the package `cryptography` is missing."""
    # No two authorities may have one name: a ca.crt that holds both would be searched by it.
    name = f"dtrain {run_id.encode('ascii', 'replace').decode()[:40]} {secrets.token_hex(4)}"
    return _library().make(name, days)


def read_authority(certificate: bytes, key: bytes) -> "Authority":
    return _library().read(certificate, key)


def _library() -> "type[Authority]":
    try:
        from dtrain_cli.certificates.by_library import Authority
    except ModuleNotFoundError:
        raise SpecError(_NO_LIBRARY) from None
    return Authority


CERTIFICATE = "ca.crt"
KEY = Path("authority") / "ca.key"


def places(addresses: dict[TaskId, str | None]) -> dict[str, str]:
    """Return the folder of each task below the folder of all, by its `task_name`."""
    folders = {task: _host_folder(at) if at else task.role.value for task, at in addresses.items()}
    return {**{task_name(task): folder for task, folder in folders.items()}, joined_worker(): "joining"}


def write_certificates(out: Path, run_id: str, tasks: dict[str, str], days: int, renew: bool) -> list[Path]:
    """Make the authority of a run and a leaf for each task; return the folders of the hosts.

    `renew` makes new leaves by the authority that is there. Nothing is changed where a `SpecError` is raised.
    """
    folders = [out / folder for folder in dict.fromkeys(tasks.values())]
    authority = _authority_in(out, days) if renew else make_authority(run_id, max(AUTHORITY_DAYS, days))
    files = {} if renew else {out / KEY: (authority.key, 0o600)}
    files |= {folder / CERTIFICATE: (authority.certificate, 0o644) for folder in (out, *folders)}
    for name, folder in tasks.items():
        leaf = authority.issue(LeafNames.of(run_id, name), days)
        files[out / folder / f"{name}.key"] = leaf.key, 0o600
        files[out / folder / f"{name}.crt"] = leaf.certificate, 0o644
    if not renew and (there := [str(file) for file in files if file.exists()]):
        more = f" and {len(there) - 1} more" if there[1:] else ""
        raise SpecError(
            f"{there[0]}{more} exist: --renew makes new certificates by the authority in {out}; to begin "
            "with a new authority name another folder, or remove this one"
        )
    out.mkdir(mode=0o700, parents=True, exist_ok=True)
    for file, (content, mode) in files.items():
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _write(file, content, mode)
    return folders


def _host_folder(address: str) -> str:
    """Return a folder's name for the host of an address, also for ``[fd00::2]:2222`` and ``..:2222``."""
    host = address.rpartition(":")[0].strip("[]")
    return re.sub(r"[^\w.-]", "_", host).lstrip(".-") or "_"


def _authority_in(out: Path, days: int) -> "Authority":
    try:
        authority = read_authority(*map(read_tls_file, (out / CERTIFICATE, out / KEY)))
    except SpecError as error:
        raise SpecError(f"{error}; --renew needs {out / CERTIFICATE} and {out / KEY}") from None
    if not authority.lives(days):
        raise SpecError(
            f"{out / CERTIFICATE}: this authority ends in less than {days} days; make another in a new "
            "folder, and give tasks a ca.crt with both until all have new certificates"
        )
    return authority


def _write(path: Path, content: bytes, mode: int) -> None:
    """Replace a file as a whole: a task may read it at any time."""
    new = path.with_name(f".{path.name}.new")
    with contextlib.suppress(FileNotFoundError):  # of a call that was killed
        new.unlink()
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode), "wb") as file:
        file.write(content)
    new.replace(path)
