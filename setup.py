"""Compiles the core with mypyc when the environment has MQTTREE_COMPILE=1; else nothing is compiled
and no compiler is needed. All else about the distribution is in pyproject.toml."""

from __future__ import annotations

import os
import runpy
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).parent
NEEDED = ("mypy[mypyc]>=2.4,<3", "types-PyYAML", "types-psutil", "cryptography>=42")
"""What compiles, and the packages whose types the compiler has to see."""


def extensions() -> list[Extension]:
    """Return what the compiler makes of the core's sources."""
    from mypyc.build import mypycify

    core: dict[str, Any] = runpy.run_path(str(ROOT / "broker" / "base" / "core_build.py"))
    paths = [str(path.relative_to(ROOT)) for _, path in core["sources"](ROOT)]
    name = "mqttree.broker." + core["library"](ROOT).removesuffix("__mypyc")
    found: list[Extension] = mypycify(
        ["--config-file=pyproject.toml", *paths],
        group_name=name,
        multi_file=True,
        opt_level=os.environ.get("MQTTREE_OPTIMISE", "3"),
        debug_level="0",
        target_dir="build/mypyc",
    )
    for extension in found:
        # Headers of a group in a package are in the package's folder.
        extension.include_dirs.append("build/mypyc/mqttree/broker")
        # Calls within the library, and those of Python's functions, go there directly.
        extension.extra_compile_args += ["-fvisibility=hidden", "-fno-plt"]
    return found


class ParallelBuild(build_ext):
    """Compiles the sources of one library beside each other, as many as there are cores."""

    def build_extensions(self) -> None:
        """Compile all that there is."""
        compile_one = self.compiler.compile

        def compile_all(sources: list[str], **options: Any) -> list[str]:
            with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
                found = pool.map(lambda source: compile_one([source], **options), sources)
                return [each for objects in found for each in objects]

        self.compiler.compile = compile_all
        super().build_extensions()


os.chdir(ROOT)
compiled = os.environ.get("MQTTREE_COMPILE") == "1"
# Frontends ask for what the build needs before it is there.
asked = {"egg_info", "dist_info"} & set(sys.argv)
setup(
    cmdclass={"build_ext": ParallelBuild},
    ext_modules=extensions() if compiled and not asked else [],
    setup_requires=list(NEEDED) if compiled and asked else [],
)
