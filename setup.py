"""Compiles the core with mypyc when the environment has MQTTREE_COMPILE=1; else nothing is compiled
and no compiler is needed. All else about the distribution is in pyproject.toml."""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path
from typing import Any

from setuptools import Extension, setup

ROOT = Path(__file__).parent
MYPY = "mypy[mypyc]>=2.4,<3"
"""What compiles."""


def extensions() -> list[Extension]:
    """Return what the compiler makes of the core's sources."""
    from mypyc.build import mypycify

    core: dict[str, Any] = runpy.run_path(str(ROOT / "broker" / "base" / "core_build.py"))
    paths = [str(path.relative_to(ROOT)) for _, path in core["sources"](ROOT)]
    name = "broker." + core["library"](ROOT).removesuffix("__mypyc")
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
        extension.include_dirs.append("build/mypyc/broker")
    return found


os.chdir(ROOT)
compiled = os.environ.get("MQTTREE_COMPILE") == "1"
# Frontends ask for what the build needs before it is there.
asked = {"egg_info", "dist_info"} & set(sys.argv)
setup(
    ext_modules=extensions() if compiled and not asked else [],
    setup_requires=[MYPY] if compiled and asked else [],
)
