"""`ottla replay run`: the options, and what is printed."""

from __future__ import annotations

import contextlib
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tools.admin.bootstrap import BOOTSTRAP_VARIABLE, DEFAULT_RUN_DIRECTORY
from tools.admin.naming import (
    bootstrap_option,
    command_config_option,
    compose_option,
    directory_option,
    fault_command_option,
)
from tools.failures import INTERRUPTED, guarded
from tools.group_protocols import CLASSIC, CONSUMER, GROUP_PROTOCOLS
from tools.numbers import DIRECTORY, EXISTING_FILE, PATH, FloatRange, IntRange, Parsed
from tools.points_in_time import parse_duration_ms
from tools.replay.checks import FORBIDDEN, parse_gate, parse_limit
from tools.replay.parameters import POSITIVE, master_option, spark_setting_option, topic_for
from tools.replay.places import PLACE, PLACE_DIRECTORY, Place, inside, whole

if TYPE_CHECKING:
    from tools.faults.script import FaultRun
    from tools.replay.run.driver import Options, Replay
    from tools.replay.run.open_places import Places

AS_FAST_AS_POSSIBLE = "max"


def factor(text: str) -> float:
    """`2` or `2x`, above 0."""
    return float(POSITIVE.convert(text.removesuffix("x"), None, None))


def speed(text: str) -> float | None:
    """`2`, `0.5x`, or `max`."""
    return None if text == AS_FAST_AS_POSSIBLE else factor(text)


def count(text: str) -> int:
    """`10` or `10x`."""
    return int(IntRange(1, 10_000).convert(text.removesuffix("x"), None, None))


def ramp(text: str) -> tuple[list[float], float]:
    """The speeds and the seconds of a step. `1x..8x/30s`: the speed doubles every 30 s, from 1x to 8x. Raises ValueError."""
    ends, slash, step = text.partition("/")
    first, dots, last = ends.partition("..")
    if not slash or not dots:
        raise ValueError(f"{text!r} is not FROM..TO/STEP, such as 1x..16x/30s")
    step_s = parse_duration_ms(step) / 1000
    lowest, highest = factor(first), factor(last)
    if not lowest < highest or step_s <= 0:
        raise ValueError(f"{text!r}: the first speed must be below the last, and a step above 0 s")
    speeds = [lowest]
    while speeds[-1] * 2 < highest:
        speeds.append(speeds[-1] * 2)
    return [*speeds, highest], step_s


def client_property(text: str) -> tuple[str, str]:
    """(key, value) of `security.protocol=SSL`. Raises ValueError."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        # The value may be a password.
        raise ValueError("expected KEY=VALUE, such as security.protocol=SSL")
    return key.strip(), value.strip()


def load_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that say what is sent where; `options_of` takes their values."""
    for option in reversed(
        (
            bootstrap_option(
                f"Send to this cluster. [default: ${BOOTSTRAP_VARIABLE}, else --dir ./{DEFAULT_RUN_DIRECTORY}]"
            ),
            directory_option("Send to the local cluster in this run directory."),
            command_config_option(
                "Connect by TLS and SASL as this properties file says, which Kafka's tools can read, too."
            ),
            click.option(
                "--client-property",
                "client_properties",
                type=Parsed("key=value", client_property),
                multiple=True,
                help="Set a client property; it overrides the file. Keep passwords in the file: other users can see them here.",
            ),
            click.option(
                "--out",
                "output",
                type=PLACE_DIRECTORY,
                default="replay-out",
                show_default=True,
                help="Write the results to this directory, or to a URI that all Spark executors reach, such as hdfs://... or s3a://...",
            ),
            click.option(
                "--speed",
                type=Parsed("speed", speed),
                default="1x",
                show_default=True,
                help="Speed-up over the trace, such as 0.1x or 10x; `max` sends as fast as possible.",
            ),
            click.option(
                "--ramp",
                type=Parsed("from..to/step", ramp),
                help="Double the speed after each step, such as 1x..16x/30s.",
            ),
            click.option(
                "--clients",
                type=Parsed("count", count),
                default="1x",
                show_default=True,
                help="Replace each client by this many, each with the whole load.",
            ),
            click.option(
                "--bytes",
                type=Parsed("factor", factor),
                default="1x",
                show_default=True,
                help="Multiply all sizes by this factor.",
            ),
            click.option(
                "--map-topic",
                "topics",
                type=topic_for("A=B"),
                multiple=True,
                callback=lambda context, option, pairs: dict(pairs),
                help="Use topic B where the trace has topic A.",
            ),
            click.option(
                "--no-groups",
                "groups",
                is_flag=True,
                callback=lambda context, option, given: not given,
                help="Join no consumer groups.",
            ),
            click.option(
                "--group-protocol",
                type=click.Choice(GROUP_PROTOCOLS),
                default=CLASSIC,
                show_default=True,
                help="Be members of consumer groups by this protocol, as Kafka's group.protocol; `consumer` is that of KIP-848.",
            ),
            click.option("--create-topics", is_flag=True, help="Create the topics that do not exist."),
            click.option(
                "--replication-factor",
                type=IntRange(1, 100),
                help="Replicas of created topics. [default: the brokers' setting]",
            ),
            click.option(
                "--tasks", type=IntRange(1, 4096), default=2, show_default=True, help="Number of Spark tasks."
            ),
            click.option(
                "--answer-timeout",
                "answer_timeout_s",
                type=FloatRange(min=1),
                default=60.0,
                show_default=True,
                help="Seconds after which an operation without an answer has failed.",
            ),
            click.option(
                "--max-failed",
                type=Parsed("limit", lambda text: parse_limit(text).text),
                default="0",
                show_default=True,
                help="So many operations may fail, or such a share of them: 10 or 0.1%.",
            ),
            click.option(
                "--assert",
                "gates",
                type=Parsed("condition", lambda text: parse_gate(text).text),
                multiple=True,
                help="Exit with 1 if this does not hold, such as 'produce.p99 < 50ms' or 'errors < 0.1%'. docs/REPLAY.md has all metrics.",
            ),
            click.option(
                "--forbid",
                type=click.Choice(FORBIDDEN),
                multiple=True,
                help="Exit with 1 if this happens to batches without acks=all, too.",
            ),
            spark_setting_option,
        )
    ):
        command = option(command)
    return command


def check_apart(trace: Place, output: Place) -> None:
    """Raises BadParameter if the results would be written into the trace, or the trace removed with earlier results."""
    source, results = whole(trace), whole(output)
    if source == results or source in results.parents or results in source.parents:
        raise click.BadParameter(
            f"{output} and the trace {trace} are in one another; choose another directory", param_hint="--out"
        )


def options_of(
    trace: Place,
    output: Place,
    bootstrap_server: str | None,
    directory: Path | None,
    command_config: Path | None,
    client_properties: Sequence[tuple[str, str]],
    speed: float | None,
    ramp: tuple[list[float], float] | None,
    **load: Any,
) -> Options:
    """`load`: fields of Options under their own names. Raises UsageError, NoBootstrapServer, BadClientProperties."""
    from tools.admin.bootstrap import find_bootstrap_servers
    from tools.admin.naming import Where
    from tools.replay.run.driver import Options
    from tools.wire.client_properties import read_security

    check_apart(trace, output)
    if load["group_protocol"] == CONSUMER and not load["groups"]:
        raise click.UsageError(f"--no-groups and --group-protocol {CONSUMER} contradict each other")
    config = Where(bootstrap_server, directory, command_config).command_config
    return Options(
        trace=trace,
        bootstrap_servers=find_bootstrap_servers(bootstrap_server, directory),
        speeds=ramp[0] if ramp else [] if speed is None else [speed],
        step_s=ramp[1] if ramp else 0.0,
        security=read_security(config, client_properties, ignores_others=config != command_config),
        **load,
    )


@click.command("run")
@click.argument("trace", type=PLACE, required=False)
@load_options
@click.option(
    "--resume",
    metavar="OUT",
    type=PLACE,
    help="In the place of TRACE: what the replay with these results did not do, because it lost a task.",
)
@master_option("Run on this Spark master: local[N] or spark://HOST:PORT. [default: local[TASKS]]")
@click.option(
    "--control-host",
    help="Tell the executors to reach this machine at this address. [default: the one that leads to the master]",
)
@click.option(
    "--event-log",
    type=DIRECTORY,
    help="Write Spark's event log to this directory, for its history server.",
)
@click.option(
    "--prometheus-file",
    type=PATH,
    help="Write the progress there each second, in Prometheus' text format, such as for the node exporter's textfile collector.",
)
@click.option(
    "--fault",
    "faults",
    multiple=True,
    help="Inject a fault, such as 'kill leader of departures-0 at 20s' or 'restart it at 35s'. Needs --dir, --compose or --fault-command.",
)
@click.option(
    "--repeat",
    type=IntRange(1, 1000),
    default=1,
    show_default=True,
    help="Replay so many times, into run-1, run-2 ... of --out, in the place of what is there. `ottla replay compare` needs several runs.",
)
@click.option(
    "--warm-up",
    "warm_up_s",
    type=Parsed("duration", lambda text: parse_duration_ms(text) / 1000),
    help="First send the load for so long, such as 30s, and leave it out of every figure.",
)
@compose_option("Inject the faults into this Compose project: its name, or the directory of its docker-compose.yml.")
@fault_command_option("Inject the faults into any other cluster by this program: PROGRAM ACTION BROKER-ID HOST PORT.")
@guarded
def run(
    trace: Place | None,
    resume: Place | None,
    output: Place,
    master: str | None,
    control_host: str | None,
    event_log: Path | None,
    prometheus_file: Path | None,
    faults: Sequence[str],
    repeat: int,
    warm_up_s: float | None,
    directory: Path | None,
    project: str | None,
    fault_command: str | None,
    bootstrap_server: str | None,
    **load: Any,
) -> int:
    """Replay TRACE, a path or a URI, against a cluster. Each operation is sent at its time, whether or not earlier ones are answered.

    With --resume, the rest starts at once; use another --out, and no --map-topic, --clients or --bytes: the rest has been mapped.

    Afterwards the replay reads back everything that was acknowledged. The exit code is 1 if records are lost, duplicated, reordered or
    corrupt, if more than --max-failed operations failed, if an --assert does not hold, if a Spark task is lost, or if nothing was
    acknowledged; it is 2 if something could not be verified. Ctrl-C ends the sending; records sent before are read back.
    With --repeat, the exit code is 1 if it is 1 for any run, else 2 if it is 2 for any.
    """

    from tools.replay.run.open_places import Places

    def replayed(places: Places) -> int:
        from tools.cluster.local_cluster import LocalCluster
        from tools.faults.clusters import find_target
        from tools.faults.record import FaultRecord
        from tools.faults.script import FaultError, FaultRun, check, parse_all
        from tools.replay.run.cpu_meter import broker_pids
        from tools.replay.run.driver import Replay, facts_of, say_fault
        from tools.replay.run.outcome import say_outcome
        from tools.replay.run.plan import OutputDirectory
        from tools.replay.traces.schema import Trace
        from tools.wire.security import PLAINTEXT

        try:
            scripted = parse_all(faults)
            if scripted and directory is None and project is None and fault_command is None:
                raise click.UsageError(
                    "--fault needs the cluster that it hits: --dir for a local one, --compose for one in containers, "
                    "--fault-command for any other"
                )
            cluster = find_target(directory, project, fault_command, bootstrap_server)
            if cluster is not None:
                check(scripted, cluster)
        except FaultError as problem:
            raise click.BadParameter(str(problem), param_hint="--fault") from None
        servers = cluster.bootstrap_servers if cluster is not None and not bootstrap_server else bootstrap_server
        source = trace_or_rest(places, trace, resume)
        options = options_of(source, output, bootstrap_server=servers, directory=directory, **load)
        names_access = load["command_config"] is not None or load["client_properties"]
        if cluster is not None and options.security == PLAINTEXT and not names_access:
            options = replace(options, security=cluster.security)
        options = replace(
            options, master=master, control_host=control_host, event_log=event_log, prometheus_file=prometheus_file
        )
        if directory is not None:
            options = replace(options, broker_pids=broker_pids(LocalCluster(directory)))

        def faults_of(replay: Replay) -> FaultRun | None:
            if cluster is None or not scripted:
                return None
            topics = sorted(set(replay.plan.topics.values()))
            record = FaultRecord(cluster.record_file)
            return FaultRun(cluster, scripted, topics, say_fault, replay.control.clock.now_ns, record)

        facts = facts_of(Trace(places.local_copy(source)))
        if warm_up_s:
            click.echo(f"Warming up for {warm_up_s:g} s")
            warm_up = Replay(options, facts, OutputDirectory(places.new_directory("warm-up")))
            with ended(warm_up, None):
                warm_up.warm_up(warm_up_s)
        codes = []
        for number in range(1, repeat + 1):
            if repeat > 1:
                click.echo(f"Run {number} of {repeat}")
            place = inside(output, f"run-{number}") if repeat > 1 else output
            replay = Replay(options, facts, places.new_output(place))
            if number == 1 and repeat > 1:
                remove_runs(places, output)
            run_of_faults = faults_of(replay)
            with ended(replay, run_of_faults):
                verdict = replay.run(run_of_faults, judges_after_interrupt=True)
            codes.append(say_outcome(replay.output, verdict))
            if replay.output.uri:
                shutil.rmtree(replay.output.path)
            if replay.was_interrupted and number < repeat:
                click.echo(f"Interrupted: {number} of {repeat} runs are done", err=True)
                return INTERRUPTED
        return worst(codes)

    with Places(load["spark_settings"]) as places:
        return replayed(places)


def trace_or_rest(places: Places, trace: Place | None, resume: Place | None) -> Place:
    """Raises UsageError."""
    if (trace is None) == (resume is None):
        raise click.UsageError("name a TRACE, or a replay by --resume OUT")
    if trace is not None:
        return trace
    assert resume is not None
    rest = inside(resume, "undone")
    if not places.exists(rest):
        raise click.UsageError(f"--resume: {resume} has no directory undone: its replay lost no task")
    return rest


@contextlib.contextmanager
def ended(replay: Replay, faults: FaultRun | None) -> Iterator[None]:
    """Stops the job and heals the cluster at the end."""
    from tools.interrupts import ignore_from_now, interruptible

    with interruptible():  # the next run can be interrupted, too
        try:
            yield
        finally:
            try:
                ignore_from_now()
            finally:  # an interrupt may come first
                replay.job.stop()
                if faults is not None:
                    faults.finish()


def remove_runs(places: Places, place: Place) -> None:
    """Removes what earlier replays left where --repeat writes: one, or several, of which there may have been more than now."""
    from tools.replay.run.compare_runs_command import repeats_in

    for run in repeats_in(places, place):
        places.delete(run)
    if places.exists(inside(place, "plan.json")):
        places.clear(place)


def worst(codes: Sequence[int]) -> int:
    """1 before 2 before 0."""
    return min(codes, key=lambda code: code or sys.maxsize)


@click.command("report")
@click.argument("place", metavar="RUN", type=PLACE)
@master_option("Analyse on this Spark master: local[N] or spark://HOST:PORT.")
@spark_setting_option
@guarded
def report(place: Place, master: str | None, spark_settings: Sequence[str]) -> int:
    """Analyse an earlier replay again, and rewrite its summary and its report. RUN is the directory or the URI of its results."""
    from tools.replay.run.compare_runs_command import analyse
    from tools.replay.run.open_places import Places
    from tools.replay.run.outcome import read_verdict, say_outcome

    with Places(spark_settings) as places:
        output = places.results(place)
        analyse(places, output, master, spark_settings)
        return say_outcome(output, read_verdict(output))


@click.command("submit-command")
@click.argument("trace", type=PLACE)
@load_options
@click.option(
    "--master", default="yarn", show_default=True, help="Run on this Spark master, such as k8s://https://HOST:PORT."
)
@click.option("--deploy-mode", type=click.Choice(["client", "cluster"]), default="client", show_default=True)
@click.option(
    "--archive",
    type=EXISTING_FILE,
    help="Give the executors this packed Python environment, written by venv-pack or conda-pack.",
)
@click.option("--event-log", help="Write Spark's event log to this URI, for its history server.")
@guarded
def submit_command(
    master: str,
    deploy_mode: str,
    archive: Path | None,
    event_log: str | None,
    output: Place,
    bootstrap_server: str | None,
    **load: Any,
) -> int:
    """Write the plan of a replay of TRACE to --out, and print the command that runs it by spark-submit.

    The job prints its progress and the verdict. --create-topics creates the topics now.
    """

    from tools.replay.run.open_places import Places
    from tools.replay.run.submission import Submission, write_submission

    options = options_of(output=output, bootstrap_server=bootstrap_server, **load)
    with Places(options.spark_settings) as places:
        click.echo(write_submission(options, Submission(master, deploy_mode, archive, event_log), output, places))
    return 0
