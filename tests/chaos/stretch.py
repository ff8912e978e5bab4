"""A stretch of a run: one `dtrain launch` with its faults, up to its end or to a `dtrain stop`; a story is
one or two of them.
"""

import re
import signal
from dataclasses import dataclass

from clusters.watching import step_of
from launching import wait_until

STOPPED = (143, -signal.SIGTERM)
"""The second where the order comes when the run has just ended; to a shell they are the same."""
RESTARTS = [f"restart.{role}={{max: 9, backoff_s: 0.1}}" for role in ("chief", "worker", "ps")]


@dataclass(frozen=True)
class Stretch:
    """One launch.

    Attributes:
        options: of the launch.
        settings: what `--set` is given, faults included.
        stop_at: the step at which it is stopped; None: it goes on to its end.
    """

    options: tuple[str, ...]
    settings: tuple[str, ...]
    stop_at: int | None = None

    def words(self):
        return (*self.options, *_set(self.settings))

    def __str__(self):
        end = "" if self.stop_at is None else f", stopped at step {self.stop_at}"
        return (
            " ".join(word if re.fullmatch(r"[\w=.:/-]+", word) else f"'{word}'" for word in self.words())
            + end
        )


def tell(launcher, stretches, program, name="run"):
    """Run the stretches one after the other, each but the first with `--resume`; return the run directory."""
    run_dir = launcher.folder / name
    for number, stretch in enumerate(stretches):
        resume = ["--resume"] if number else []
        words = (
            "--no-evaluator",
            *resume,
            "--run-dir",
            str(run_dir),
            *_set(RESTARTS),
            *stretch.words(),
        )
        launch = launcher.start(*words, *program, run_dir=run_dir)
        if stretch.stop_at is not None:
            wait_until(
                lambda: launch.process.poll() is not None or step_of(launch, "chief:0") >= stretch.stop_at,  # noqa: B023
                "it is stopped",
            )
            launcher.dtrain("stop", str(run_dir)).end()
        code = launch.end()
        print(launch.err, flush=True)
        assert code == 0 or (stretch.stop_at is not None and code in STOPPED), (
            f"exit code {code}\n{launch.out}"
        )
        launch.wait_gone()
    return run_dir


def _set(settings):
    return [word for setting in settings for word in ("--set", setting)]
