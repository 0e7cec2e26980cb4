"""`python -m broker.compiled.build`: compiles MODULES with mypyc. Needs mypy, setuptools and a C compiler; `make compile` calls it."""

from __future__ import annotations

import json
import os
import shutil
import sys
import sysconfig
import tempfile
from pathlib import Path

from broker.compiled import LIBRARY, MANIFEST, MODULES, SOURCES, digest, source_of


def main() -> None:
    """Replaces the compiled form by a new one. The broker uses it from its next start on."""
    try:
        from mypy.version import __version__ as mypy_version
        from mypyc.build import mypycify
        from setuptools import Distribution
    except ImportError as error:
        sys.exit(f"compile: {error}: install mypy and setuptools (`make setup`)")
    compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
    if shutil.which(compiler) is None:
        sys.exit(f"compile: the C compiler {compiler!r} was not found (on Debian: apt-get install gcc)")
    sources = {module: digest(source_of(module)) for module in MODULES}
    with tempfile.TemporaryDirectory(prefix="ottla-compile-") as directory:
        os.chdir(SOURCES)
        extensions = mypycify(
            ["--follow-imports=silent", *(str(source_of(module).relative_to(SOURCES)) for module in MODULES)],
            opt_level="2",
            debug_level="0",
            multi_file=True,
            target_dir=f"{directory}/c",
        )
        os.chdir(directory)
        command = Distribution({"ext_modules": extensions}).get_command_obj("build_ext")
        command.build_lib, command.build_temp = f"{directory}/lib", f"{directory}/objects"
        command.parallel = os.cpu_count()
        command.ensure_finalized()
        command.run()
        manifest = {"python": sys.implementation.cache_tag, "mypyc": mypy_version, "sources": sources}
        (Path(directory) / "lib" / MANIFEST.name).write_text(json.dumps(manifest, indent=1))
        shutil.rmtree(LIBRARY, ignore_errors=True)
        shutil.move(f"{directory}/lib", LIBRARY)
    print(f"compile: {len(MODULES)} modules in {LIBRARY}")


if __name__ == "__main__":
    main()
