"""The environment variables that the product's source names."""

import ast
import re
from pathlib import Path

from net.names import ROOT

OWN = re.compile(
    r"(DTRAIN|TF|AIP|SM|SLURM|XDG|JOB|AWS|OMP|MKL|OPENBLAS|NUMEXPR|BLIS|VECLIB|KUBERNETES|PYTHON|LC)_?[A-Z0-9_]*"
)
PLAIN = {
    "CLUSTER_SPEC",
    "CLOUD_ML_JOB",
    "NO_COLOR",
    "TERM",
    "COLUMNS",
    "HOME",
    "PATH",
    "RANK",
    "LOCAL_RANK",
    "HOSTNAME",
}
PLAIN |= {
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "PYTHONPATH",
    "LANG",
    "TMPDIR",
    "USER",
}


def pages(folder: Path) -> dict[str, str]:
    """Return the names of variables that stand in the source as a text of their own, or first in a command."""
    texts = {
        node.value
        for room in ("runtime", "cli")
        for path in (ROOT / room).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    found = sorted(text for text in texts if text in PLAIN or OWN.fullmatch(text))
    return {"environment_variables.txt": "".join(f"{name}\n" for name in found)}
