"""A replay that spark-submit starts, on YARN, Kubernetes or a standalone cluster: its files, and the command (RPL-4)."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

from tools.replay.run.access import write_access
from tools.replay.run.driver import Options, clear_results, new_plan
from tools.replay.run.packages import write_packages
from tools.replay.run.plan import OutputDirectory, write_json
from tools.replay.run.session import required
from tools.replay.run.spark_process import PACKAGES_ZIP

ENVIRONMENT = "environment"
"""The directory where the executors unpack the archive."""


@dataclass(frozen=True, slots=True)
class Submission:
    """What spark-submit is told besides the plan."""

    master: str
    deploy_mode: str
    archive: Path | None
    event_log: str | None


def write_submission(options: Options, submission: Submission) -> str:
    """Checks the replay, writes its plan and the project's code to the output directory, and returns the command.

    Raises TraceError, ReplayError.
    """
    output = OutputDirectory(options.output.absolute())
    plan = new_plan(options, control="")
    clear_results(output)
    output.write_plan(plan)
    write_json(output.faults, [])
    write_access(output, options.security)
    write_packages(output.path / PACKAGES_ZIP)
    return shlex.join(arguments(output, submission, list(options.spark_settings), options.tasks))


def arguments(output: OutputDirectory, submission: Submission, settings: list[str], tasks: int) -> list[str]:
    """The words of the command. What the job needs comes last: it wins over `spark-defaults.conf` and over other settings."""
    words = ["spark-submit", "--master", submission.master, "--deploy-mode", submission.deploy_mode]
    words += ["--py-files", str(output.path / PACKAGES_ZIP)]
    if submission.archive is not None:
        words += ["--archives", f"{submission.archive.absolute()}#{ENVIRONMENT}"]
        settings = [f"spark.pyspark.python=./{ENVIRONMENT}/bin/python", *settings]
        if submission.deploy_mode == "client":
            settings = [f"spark.pyspark.driver.python={sys.executable}", *settings]
    if submission.event_log is not None:
        settings = ["spark.eventLog.enabled=true", f"spark.eventLog.dir={submission.event_log}", *settings]
    for setting in [*settings, *(f"{key}={value}" for key, value in required(tasks).items())]:
        words += ["--conf", setting]
    return [*words, str(Path(__file__).with_name("job.py")), str(output.path)]
