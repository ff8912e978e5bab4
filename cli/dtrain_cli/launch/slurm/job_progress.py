"""The sentences about a job while it waits, runs, is requeued and ends. Pure."""

from dtrain_cli.targets.slurm.job_report import WAITING, JobReport

UNKNOWN_MAX = 5
"""After so many looks in a row at a job that Slurm does not know it is taken for gone."""


class JobProgress:
    """A job as its follower has seen it.

    Attributes:
        exit_code: of the run, once the job is over.
    """

    def __init__(self, job: str) -> None:
        self.exit_code: int | None = None
        self._job = job
        self._said = ""
        self._last: JobReport | None = None
        self._unknown = 0

    def look(self, report: JobReport | None) -> str | None:
        """Take in how the job stands; return a sentence where that is news.

        Args:
            report: None if Slurm does not know the job; it forgets jobs some minutes after their end.
        """
        if report is None:
            self._unknown += 1
            if self._unknown < UNKNOWN_MAX:
                return None
            self.exit_code = self._last.exit_code if self._last is not None and self._last.over else 1
            return f"Slurm knows no job {self._job} any more"
        self._unknown = 0
        self._last = report
        if report.over:
            self.exit_code = report.exit_code
        text = self._sentence(report)
        if text == self._said:
            return None
        self._said = text
        return text

    def _sentence(self, report: JobReport) -> str:
        again = f", requeued {report.restarts} times" if report.restarts > 1 else ""
        again = ", requeued once" if report.restarts == 1 else again
        if report.over:
            code = f", exit code {self.exit_code}" if self.exit_code else ""
            return f"job {self._job} is {report.state}{code}{again}"
        if report.state in WAITING and report.reason not in ("None", ""):
            return f"job {self._job} is {report.state} ({report.reason}){again}"
        return f"job {self._job} is {report.state}{again}"
