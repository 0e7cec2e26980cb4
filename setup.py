"""What pyproject.toml cannot say: a wheel contains the compiled form of the brokers if it is there, and is then for this platform only."""

import sys
from pathlib import Path

from setuptools import Distribution, setup

sys.path.insert(0, str(Path(__file__).parent))  # a build has its own sys.path, without this directory

from broker import compiled

IS_COMPILED, _ = compiled.form({})


class PerhapsCompiled(Distribution):
    def has_ext_modules(self) -> bool:
        return IS_COMPILED

    def parse_config_files(self, *arguments, **options) -> None:
        super().parse_config_files(*arguments, **options)
        if IS_COMPILED:
            directory = compiled.read_manifest().directory
            self.package_data["broker.compiled"] = ["lib/manifest.json", f"lib/{directory}/**/*{compiled.SUFFIX}"]


setup(distclass=PerhapsCompiled)
