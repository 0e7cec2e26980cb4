"""A replay that spark-submit starts, on YARN, Kubernetes or a standalone cluster: its files, and the command (RPL-4)."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

from tools.replay.places import Place, inside, is_uri
from tools.replay.run.driver import Options, facts_of, new_plan, prepare
from tools.replay.run.open_places import Places
from tools.replay.run.packages import write_packages
from tools.replay.run.plan import OutputDirectory, ReplayError
from tools.replay.run.session import required
from tools.replay.run.spark_process import PACKAGES_ZIP
from tools.replay.traces.schema import Trace

ENVIRONMENT = "environment"
"""The directory where the executors unpack the archive."""


@dataclass(frozen=True, slots=True)
class Submission:
    """What spark-submit is told besides the plan."""

    master: str
    deploy_mode: str
    archive: Path | None
    event_log: str | None


def write_submission(options: Options, submission: Submission, out: Place, places: Places) -> str:
    """Checks the replay, writes its plan and the project's code to the place, and returns the command.

    Raises TraceError, ReplayError.
    """
    if submission.deploy_mode == "cluster" and not is_uri(out):
        raise ReplayError(
            f"--deploy-mode cluster: the driver runs on another machine, so --out {out} must be a URI that it reaches, such as "
            "hdfs://..., s3a://..., or file://... on a disk that all machines share"
        )
    here = places.new_directory("out") if isinstance(out, str) else out.absolute()
    output = OutputDirectory(here, out if isinstance(out, str) else "")
    plan = new_plan(options, facts_of(Trace(places.local_copy(options.trace))), output.place, control="")
    prepare(output, plan, options.security)
    write_packages(output.path / PACKAGES_ZIP)
    if output.uri:
        places.clear(output.uri)
        for path in output.path.iterdir():
            put = places.put_private if path == output.access else places.put
            put(path, f"{output.uri}/{path.name}")
    return shlex.join(arguments(output, submission, list(options.spark_settings), options.tasks))


def arguments(output: OutputDirectory, submission: Submission, settings: list[str], tasks: int) -> list[str]:
    """The words of the command. What the job needs comes last: it wins over `spark-defaults.conf` and over other settings."""
    words = ["spark-submit", "--master", submission.master, "--deploy-mode", submission.deploy_mode]
    words += ["--py-files", str(inside(output.place, PACKAGES_ZIP))]
    if submission.archive is not None:
        words += ["--archives", f"{submission.archive.absolute()}#{ENVIRONMENT}"]
        settings = [f"spark.pyspark.python=./{ENVIRONMENT}/bin/python", *settings]
        if submission.deploy_mode == "client":
            settings = [f"spark.pyspark.driver.python={sys.executable}", *settings]
    if submission.event_log is not None:
        settings = ["spark.eventLog.enabled=true", f"spark.eventLog.dir={submission.event_log}", *settings]
    for setting in [*settings, *(f"{key}={value}" for key, value in required(tasks).items())]:
        words += ["--conf", setting]
    return [*words, str(Path(__file__).with_name("job.py")), str(output.place)]
