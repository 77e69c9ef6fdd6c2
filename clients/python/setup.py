"""Packs the one file as a package: only a package can say that its hints are to be read (py.typed)."""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class Pack(build_py):
    def run(self) -> None:
        package = Path(self.build_lib, "redlock_agent")
        package.mkdir(parents=True, exist_ok=True)
        (package / "__init__.py").write_bytes(Path("redlock_agent.py").read_bytes())
        (package / "py.typed").touch()


setup(cmdclass={"build_py": Pack})
