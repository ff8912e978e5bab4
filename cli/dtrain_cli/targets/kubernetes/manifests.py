"""A run as manifests, and these as text."""

import base64
import io
import json
import re
from collections.abc import Iterable
from typing import Any

from dtrain.errors import SpecError
from dtrain_cli.targets.kubernetes.code import text_of
from dtrain_cli.targets.kubernetes.jobs import workloads
from dtrain_cli.targets.kubernetes.pod import SECRET_KEY, labels
from dtrain_cli.targets.kubernetes.run import KubernetesRun
from dtrain_cli.targets.kubernetes.task_spec import FILE, task_spec

SECRET_BYTES_MAX = 1_000_000
_WIDTH = 1 << 16
_PLAIN = re.compile(r"(--?)?[A-Za-z/$][\w./:@$()-]*(?<!:)", re.ASCII)
_WORDS = {"y", "n", "yes", "no", "on", "off", "true", "false", "null"}
"""Words that are no texts in YAML 1.1, which kubectl reads."""


def manifests(run: KubernetesRun) -> list[dict[str, Any]]:
    """Return every object of a run, in the order in which they are to be applied.

    Raises:
        SpecError: the code, or the certificates of all tasks, are too large for one object.
    """
    run.code.check_size()
    objects = [_config_map(run)]
    if run.spec.kubernetes.secret is None and (secret := _secret(run))["stringData"]:
        objects.append(secret)
    if run.spec.kubernetes.volume.claim is None:
        objects.append(_claim(run))
    objects += workloads(run)
    if run.spec.kubernetes.namespace is not None:
        for each in objects:
            each["metadata"]["namespace"] = run.spec.kubernetes.namespace
    return objects


def _plain(run: KubernetesRun, kind: str, **fields: Any) -> dict[str, Any]:
    metadata = {"name": run.name, "labels": labels(run)}
    return {"apiVersion": "v1", "kind": kind, "metadata": metadata, **fields}


def _config_map(run: KubernetesRun) -> dict[str, Any]:
    data = {FILE: json.dumps(task_spec(run), indent=1, ensure_ascii=True) + "\n"}
    binary: dict[str, str] = {}
    for path, key in run.code.keys.items():
        content = run.code.files[path]
        if (text := text_of(content)) is None:
            binary[key] = base64.b64encode(content).decode()
        else:
            data[key] = text
    return _plain(run, "ConfigMap", data=data, **({"binaryData": binary} if binary else {}))


def _secret(run: KubernetesRun) -> dict[str, Any]:
    data = {} if run.foreign or run.secret is None else {SECRET_KEY: run.secret}
    data |= run.secrets
    for task, material in run.certificates.items():
        data["ca.crt"] = material.authorities.decode()
        data[f"{task}.crt"] = material.certificate.decode()
        data[f"{task}.key"] = material.key.decode()
    if sum(map(len, data.values())) > SECRET_BYTES_MAX:
        raise SpecError(
            f"the secrets and certificates of {len(run.certificates)} tasks have more bytes than a Secret "
            f"holds, {SECRET_BYTES_MAX}; expected fewer tasks, or security.tls: off"
        )
    return _plain(run, "Secret", type="Opaque", stringData=data)


def _claim(run: KubernetesRun) -> dict[str, Any]:
    volume = run.spec.kubernetes.volume
    spec: dict[str, Any] = {
        "accessModes": [volume.access],
        "resources": {"requests": {"storage": volume.size}},
    }
    if volume.storage_class is not None:
        spec["storageClassName"] = volume.storage_class
    return _plain(run, "PersistentVolumeClaim", spec=spec)


def yaml_text(objects: Iterable[dict[str, Any]]) -> str:
    """Return objects as YAML documents; texts of several lines stand as they are, to be read."""
    from ruamel.yaml import YAML

    writer = YAML()
    writer.width = _WIDTH
    writer.indent(mapping=2, sequence=4, offset=2)
    stream = io.StringIO()
    writer.dump_all([_readable(each) for each in objects], stream)
    return stream.getvalue()


def json_text(objects: Iterable[dict[str, Any]]) -> str:
    """Return objects as one list in JSON, which kubectl applies as well."""
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)}, indent=2) + "\n"


def _readable(value: Any) -> Any:
    """Return a value whose texts of several lines become blocks, and lists of numbers one line."""
    from ruamel.yaml.comments import CommentedSeq
    from ruamel.yaml.scalarstring import DoubleQuotedScalarString, LiteralScalarString

    if isinstance(value, dict):
        return {_readable(key): _readable(each) for key, each in value.items()}
    if isinstance(value, list):
        items = CommentedSeq([_readable(each) for each in value])
        if value and all(isinstance(each, int) for each in value):
            items.fa.set_flow_style()
        return items
    if isinstance(value, str) and "\n" in value and text_of(value.encode()) is not None:
        return LiteralScalarString(value)
    if isinstance(value, str) and (not _PLAIN.fullmatch(value) or value.lower() in _WORDS):
        return DoubleQuotedScalarString(value)
    return value
