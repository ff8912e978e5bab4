"""The program and the spec that the options of a launch name."""

import os
from collections.abc import Mapping
from pathlib import Path

from dtrain.config import RunSpec
from dtrain_cli.launch.options import LaunchOptions
from dtrain_cli.plan.run_plan import Workload
from dtrain_cli.spec.file import read_spec


def read_request(
    options: LaunchOptions, environment: Mapping[str, str] = os.environ
) -> tuple[Workload, RunSpec]:
    """Return the workload and the spec, with what the environment says about security.

    Raises:
        SpecError: the spec is wrong.
    """
    workload = Workload(options.program, tuple(options.arguments), Path.cwd())
    trains = not options.foreign
    spec = read_spec(options.spec, options.sets, options.shortcuts, options.foreign, trains=trains)
    return workload, spec.secured(environment)
