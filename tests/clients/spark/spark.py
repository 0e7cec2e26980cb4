"""Fetches the Spark that test_spark.py tests, and says how its program is started."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.clients.clients import BUILDS, Client
from tools.cluster.java import JavaNotFound, find_java
from tools.replay.run.spark_process import SparkSettings, job_environment, write_java_home

HERE = Path(__file__).resolve().parent
POM = HERE / "pom.xml"
BUILD = BUILDS / "spark"
JARS = BUILD / "jars"
PYTHON = BUILD / "python"
FETCHED = BUILD / "fetched"
SCRATCH = BUILD / "scratch"
FETCH = "OTTLA_TEST_SPARK_CLIENT"
FETCH_TIMEOUT_S = 900.0
CONFIGURATION = {
    "spark.master": "local[4]",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "WARN",
    "spark.sql.session.timeZone": "UTC",
}


def wanted_version() -> str:
    """As pom.xml has it."""
    found = re.search(r"<spark\.version>(.+)</spark\.version>", POM.read_text())
    assert found is not None
    return found[1]


def missing() -> str | None:
    """Fetches Spark with its Kafka jars, once, if FETCH is set. -> None, or why it cannot be had"""
    try:
        find_java()
    except JavaNotFound as problem:
        return str(problem)
    if FETCHED.exists() and FETCHED.stat().st_mtime >= POM.stat().st_mtime:
        return None
    if not os.environ.get(FETCH):
        return f"NOT TESTED: it would fetch a Spark of its own, 450 MB; {FETCH}=1 does"
    if shutil.which("mvn") is None:
        return "mvn was not found: install Maven and a JDK (on Debian: apt-get install maven default-jdk-headless)"
    shutil.rmtree(BUILD, ignore_errors=True)
    problem = fetch()
    if problem is None:
        FETCHED.touch()
    return problem


def fetch() -> str | None:
    """Spark comes from pip, 450 MB, and its Kafka jars from Maven. -> None, or the error of one of them"""
    maven = ["mvn", "--quiet", "--batch-mode", "--file", str(POM), "dependency:copy-dependencies"]
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(PYTHON), f"pyspark=={wanted_version()}"]
    for command in ([*maven, f"-DoutputDirectory={JARS}"], pip):
        done = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_TIMEOUT_S, check=False)
        if done.returncode != 0:
            lines = [line for line in (done.stdout + done.stderr).splitlines() if "ERROR" in line]
            return f"{command[0]} failed: {lines[0] if lines else done.returncode}"
    return None


def version() -> str:
    """Spark's, and that of the Kafka client in its jars."""
    (client,) = JARS.glob("kafka-clients-*.jar")
    return f"{wanted_version()} ({client.stem})"


def command() -> list[str]:
    """job.py in the environment that the project's own Spark jobs have, but with this Spark."""
    java_home = write_java_home(BUILD / "java-home", Path(find_java()))
    SCRATCH.mkdir(exist_ok=True)
    jars = ",".join(sorted(str(path) for path in JARS.glob("*.jar")))
    settings = {**CONFIGURATION, "spark.jars": jars}
    spark = SparkSettings(configuration=tuple(f"{key}={value}" for key, value in settings.items()))
    environment = job_environment(java_home, SCRATCH, spark) | {"PYTHONPATH": str(PYTHON)}
    foreign = [word for name in os.environ.keys() - environment.keys() for word in ("-u", name)]
    changed = [f"{name}={value}" for name, value in environment.items() if os.environ.get(name) != value]
    return ["env", *foreign, *changed, sys.executable, str(HERE / "job.py")]


SPARK = Client("Spark", "Scala, Python", version=version, command=command, missing=missing)
