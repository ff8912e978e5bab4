"""The program and the spec that the options of a launch name."""

import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from dtrain.config import RunSpec
from dtrain_cli.console.own_line import say
from dtrain_cli.launch.fitness import unfit
from dtrain_cli.launch.options import LaunchOptions
from dtrain_cli.plan.run_plan import Workload
from dtrain_cli.spec.file import read_spec


def read_request(
    options: LaunchOptions, environment: Mapping[str, str] = os.environ, *, starts: bool = True
) -> tuple[Workload, RunSpec]:
    """Return the workload and the spec, with what the environment says about security; name in a line each
    setting that has no use.

    Args:
        options: of the command.
        environment: of the user.
        starts: see `unfit`.

    Raises:
        SpecError: the spec is wrong, or cannot be launched.
    """
    foreign = options.foreign
    spec = read_spec(
        options.spec,
        options.sets,
        options.shortcuts,
        foreign,
        trains=not foreign,
        unfit=partial(unfit, environment=environment, foreign=foreign, starts=starts),
        note=say,
    )
    workload = Workload(options.program, tuple(options.arguments), Path.cwd())
    return workload, spec.secured(environment)
