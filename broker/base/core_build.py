"""Whether the compiled core runs, or the Python sources of which it was made.

`setup.py` compiles the modules of `PACKAGES`, and `MODULES`, into one library, and its name has a
digest of their sources: what was compiled from other sources is noticed, and not used.
`broker/__init__.py` calls `choose` before any module that may be compiled; this one never is.
"""

from __future__ import annotations

import enum
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType

PACKAGES = (
    "mqttree.broker.wire",
    "mqttree.broker.base",
    "mqttree.routing",
    "mqttree.stp",
    "mqttree.placement",
    "mqttree.broker.leg",
    "mqttree.broker.core",
    "mqttree.broker.cluster",
    "mqttree.broker.persistence",
    "mqttree.bench.model",
)
"""What is compiled, with all packages below these."""
MODULES = (
    "mqttree.broker.io.driver",
    "mqttree.broker.io.epoll_transport",
    "mqttree.broker.io.loop_turns",
)
"""Modules of other packages that are compiled: what each turn of the event loop goes through."""
INTERPRETED = (
    "mqttree.broker.base.core_build",
    "mqttree.broker.base.limits",
    "mqttree.broker.base.log_format",
    "mqttree.broker.base.machine",
    "mqttree.broker.base.record",
    "mqttree.broker.base.version",
    "mqttree.broker.cluster.events",
    "mqttree.broker.cluster.limits",
    "mqttree.broker.core.effects",
    "mqttree.broker.core.limits",
    "mqttree.broker.leg.effects",
    "mqttree.broker.leg.leg_settings",
    "mqttree.broker.persistence.limits",
    "mqttree.placement.question",
    "mqttree.routing.limits",
)
"""Modules of these packages that are not compiled: what only drivers use, data classes that name
types of modules above them, or are made of many options or limits, code that mypyc cannot compile,
and an exception (`mqttree.placement.question.TooMuchError`) that callers catch beside a built-in
one by the same name: compiled, each of that name would have to be the first one."""

ROOT = Path(__file__).parents[3]
"""The folder that has the package `mqttree`."""


class Core(enum.Enum):
    """Which code of the core runs."""

    PYTHON = "python"
    COMPILED = "compiled"
    STALE = "stale"
    """Python, though a compiled core is there: it was built from other sources."""

    @property
    def running(self) -> str:
        """What runs: "compiled" or "python"."""
        return "compiled" if self is Core.COMPILED else "python"


def sources(root: Path = ROOT) -> Iterator[tuple[str, Path]]:
    """Yield the name and the file of each module that is compiled, always in the same order.

    `root`: the folder that has the package `mqttree`.
    """
    for package in PACKAGES:
        for path in sorted(root.joinpath(*package.split(".")).rglob("*.py")):
            name = ".".join(path.relative_to(root).with_suffix("").parts)
            if path.name != "__init__.py" and name not in INTERPRETED:
                yield name, path
    for name in MODULES:
        path = root.joinpath(*name.split(".")).with_suffix(".py")
        if path.is_file():
            yield name, path


def library(root: Path = ROOT) -> str:
    """Return the name, without its suffix, of the library that the sources become as they are now.

    `root`: the folder that has the package `mqttree`.
    """
    # Where nothing is compiled, nothing is hashed.
    import hashlib

    digest = hashlib.sha256()
    for name, path in sources(root):
        text = path.read_bytes()
        digest.update(b"%b %d\n%b" % (name.encode(), len(text), text))
    return f"core_{digest.hexdigest()[:16]}__mypyc"


class Sources:
    """Finds the sources of modules whose compiled forms must not run; first in `sys.meta_path`."""

    def __init__(self, paths: Mapping[str, Path]) -> None:
        """`paths`: the file of each module, by its name."""
        self._paths = paths

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return where the source of the module `name` is, None if it is of no concern here. `path`
        and `target`, which importlib gives, do not matter."""
        found = self._paths.get(name)
        return None if found is None else spec_from_file_location(name, found)


def choose(wanted: str | None, root: Path = ROOT) -> Core:
    """Return which code runs. When compiled modules are there that must not run, imports find the
    sources from now on.

    `wanted`: "python" to use no compiled core; `root`: the folder that has the package `mqttree`.
    """
    suffix = EXTENSION_SUFFIXES[0]
    libraries = [
        name
        for name in os.listdir(root / "mqttree" / "broker")
        if name.startswith("core_") and name.endswith(f"__mypyc{suffix}")
    ]
    if not libraries:
        return Core.PYTHON
    if wanted == Core.PYTHON.value:
        core = Core.PYTHON
    elif library(root) + suffix in libraries:
        return Core.COMPILED
    else:
        core = Core.STALE
    sys.meta_path.insert(0, Sources(dict(sources(root))))
    return core
