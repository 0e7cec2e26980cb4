"""`python -m broker.compiled.build [--if-available]`: compiles MODULES with mypyc, unless the compiled form is that of the present sources.

It needs mypy, setuptools, a C compiler and Python's headers. Without one of them it fails, or, with `--if-available`, says in one line
that brokers run as plain Python. `make setup` and `make compile` call it. Two at once wait for each other; one that is killed
leaves the form that was there, and its rest goes with the next build.
"""

from __future__ import annotations

import argparse
import fcntl
import importlib.util
import io
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import asdict
from pathlib import Path
from typing import Any

from broker.compiled import (
    LIBRARY,
    MANIFEST,
    MODULES,
    SOURCES,
    SUFFIX,
    Manifest,
    digest,
    form,
    read_manifest,
    source_of,
)

LOCK = LIBRARY / "lock"


def main() -> None:
    """Replaces the compiled form by a new one. A broker uses it from its next start on."""
    parser = argparse.ArgumentParser(prog="python -m broker.compiled.build", description=__doc__.partition("\n")[0])
    parser.add_argument("--if-available", action="store_true", help="succeed where something is missing, and say what")
    options = parser.parse_args()
    is_compiled, words = form({})
    if is_compiled:
        print(f"compile: already done: {words}")
        return
    missing = what_is_missing()
    if missing is not None:
        print(f"compile: brokers run as plain Python, which is slower: {missing}", file=sys.stderr)
        sys.exit(0 if options.if_available else 1)
    try:
        with only_build():
            if not form({})[0]:  # another build may just have ended
                started = time.monotonic()
                print(f"compile: {len(MODULES)} modules, which takes about a minute", flush=True)
                build()
                print(f"compile: done after {time.monotonic() - started:.0f} s")
    except KeyboardInterrupt:
        sys.exit("compile: interrupted; brokers run in the form that was there")


def what_is_missing() -> str | None:
    """What a build needs and this machine has not, in words."""
    for needed in ("mypyc", "setuptools"):
        if importlib.util.find_spec(needed) is None:
            return f"{needed} is not installed (`make setup` installs it)"
    compiler = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()[0]
    if shutil.which(compiler) is None:
        return f"the C compiler {compiler!r} was not found (on Debian: apt-get install gcc)"
    headers = Path(sysconfig.get_path("include"))
    if not (headers / "Python.h").exists():
        return f"there is no Python.h in {headers} (on Debian: apt-get install python3-dev)"
    if not os.access(LIBRARY if LIBRARY.exists() else LIBRARY.parent, os.W_OK):
        return f"{LIBRARY} cannot be written"
    return None


@contextmanager
def only_build() -> Iterator[None]:
    """Waits until no other process builds, and keeps others from it."""
    LIBRARY.mkdir(exist_ok=True)
    with LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def build() -> None:
    """Compiles into a new directory, then lets the manifest name it.

    The form before it stays until the next build: a broker that starts just now may have read the old manifest.
    """
    from mypy.version import __version__ as mypy_version

    try:
        before = read_manifest().directory
    except (OSError, ValueError):
        before = ""
    for rest in LIBRARY.iterdir():
        if rest.is_dir() and rest.name != before:
            shutil.rmtree(rest)
        elif rest.is_file() and rest not in (LOCK, MANIFEST):
            rest.unlink()
    sources = {module: digest(source_of(module)) for module in MODULES}
    target = Path(tempfile.mkdtemp(prefix="form_", dir=LIBRARY))
    target.chmod(0o755)
    try:
        with tempfile.TemporaryDirectory(prefix="ottla-compile-") as directory:
            compile_into(target, Path(directory))
        files = {str(path.relative_to(target)): digest(path) for path in sorted(target.rglob(f"*{SUFFIX}"))}
        import_all(target, list(files))
        manifest = Manifest(SUFFIX, mypy_version, sources, target.name, files)
        with tempfile.NamedTemporaryFile("w", dir=target, suffix=".json", delete=False) as file:
            file.write(json.dumps(asdict(manifest), indent=1) + "\n")
        Path(file.name).chmod(0o644)
        os.replace(file.name, MANIFEST)
    except BaseException:
        shutil.rmtree(target, ignore_errors=True)
        raise


def import_all(target: Path, files: list[str]) -> None:
    """Ends this process with an error if a broker cannot import the compiled modules: mypyc compiles some code that only then fails."""
    program = (
        "import importlib, sys; from pathlib import Path; from broker.compiled import MODULES, take; "
        "take(Path(sys.argv[1]), sys.argv[2:]); [importlib.import_module(name) for name in (*MODULES, 'broker.main')]"
    )
    if subprocess.run([sys.executable, "-c", program, str(target), *files], cwd=SOURCES, check=False).returncode:
        sys.exit("compile: the compiled modules cannot be imported (above); brokers run in the form that was there")


def compile_into(target: Path, work: Path) -> None:
    """The compiled modules, as paths of their names below `target`, beside the library that they share. `work` is an empty directory."""
    from mypyc.build import mypycify
    from setuptools import Distribution
    from setuptools.command.build_ext import build_ext

    class BuildInParallel(build_ext):  # type: ignore[misc]
        """Compiles the C files of the shared library side by side. setuptools would only build libraries side by side, and there is one."""

        def build_extension(self, extension: Any) -> None:
            def compiled(source: str) -> list[str]:
                objects: list[str] = self.compiler.compile(
                    [source],
                    output_dir=self.build_temp,
                    include_dirs=extension.include_dirs,
                    extra_postargs=extension.extra_compile_args,
                )
                return objects

            largest_first = sorted(extension.sources, key=os.path.getsize, reverse=True)
            pool = ThreadPoolExecutor(os.cpu_count())
            try:
                extension.extra_objects = [each for objects in pool.map(compiled, largest_first) for each in objects]
            finally:
                pool.shutdown(cancel_futures=True)
            extension.sources = []
            super().build_extension(extension)

    said = io.StringIO()  # advice for whoever tunes; of interest only if the build fails
    os.chdir(SOURCES)  # mypy finds its settings there, and tracebacks name files as they are below it
    try:
        with redirect_stdout(said), redirect_stderr(said):
            extensions = mypycify(
                [
                    f"--cache-dir={work / 'mypy'}",
                    "--follow-imports=silent",
                    *(str(source_of(module).relative_to(SOURCES)) for module in MODULES),
                ],
                opt_level="2",
                debug_level="0",
                multi_file=True,
                target_dir=str(work / "c"),
            )
    except SystemExit:
        print(said.getvalue(), file=sys.stderr)
        raise
    os.chdir(work)
    command = BuildInParallel(Distribution({"ext_modules": extensions}))
    command.build_lib, command.build_temp = str(target), str(work / "objects")
    command.ensure_finalized()
    command.run()


if __name__ == "__main__":
    main()
