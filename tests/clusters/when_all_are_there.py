"""Runs a program, the chief's when every worker waits for it: then all take part from the first step. Not a
test itself.
"""

import json
import os
import runpy
import sys
import time
from pathlib import Path


def waits(worker: int) -> bool:
    status = Path(os.environ["DTRAIN_RUN_DIR"], "tasks", f"worker-{worker}", "status.json")
    return status.exists() and json.loads(status.read_text())["waiting_for"] is not None


place = json.loads(os.environ["TF_CONFIG"])
while place["task"]["type"] == "chief" and not all(map(waits, range(len(place["cluster"]["worker"])))):
    time.sleep(0.01)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
