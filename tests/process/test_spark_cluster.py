"""The pipeline on a standalone cluster of processes: a master, two workers and spark-submit, all of
PySpark's own package."""

from __future__ import annotations

import csv
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pyspark
import pytest

from mqttree.bench.spark.session import INTERPRETED, java_home
from mqttree.bench.trace.generate import make

pytestmark = pytest.mark.interop

HOME = Path(pyspark.__file__).parent
PATIENCE = 120.0
ENVIRONMENT = os.environ | {
    "JAVA_HOME": java_home(),
    "SPARK_LOCAL_IP": "127.0.0.1",
    "PYSPARK_PYTHON": sys.executable,
    "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1",
    "PYTHONPATH": str(Path(__file__).parents[2]),
}


class Part:
    """A process of the cluster; what it says is in a file."""

    def __init__(self, log: Path, name: str, *arguments: str) -> None:
        self.log = log
        with log.open("wb") as out:
            command = [
                str(HOME / "bin" / "spark-class"),
                f"org.apache.spark.deploy.{name}",
                *arguments,
            ]
            self.process = subprocess.Popen(
                command, stdout=out, stderr=subprocess.STDOUT, env=ENVIRONMENT, cwd=log.parent
            )

    def says(self, pattern: str) -> re.Match[str]:
        """Wait until it has said something."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            if found := re.search(pattern, self.log.read_text(errors="replace")):
                return found
            assert self.process.poll() is None, self.log.read_text()
            time.sleep(0.05)
        raise AssertionError(f"not said: {pattern}\n{self.log.read_text()}")

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """The master's URL, and the folder with the workers' files."""
    with ExitStack() as stack:
        master = Part(
            tmp_path / "master.log",
            "master.Master",
            "--host",
            "127.0.0.1",
            "--port",
            "0",
            "--webui-port",
            "0",
        )
        stack.callback(master.stop)
        url = master.says(r"Starting Spark master at (spark://\S+)")[1]
        master.says("New state: ALIVE")
        workers = []
        for number in range(2):
            folder = tmp_path / f"worker{number}"
            arguments = [
                "--host",
                "127.0.0.1",
                "-c",
                "1",
                "-m",
                "640m",
                "--webui-port",
                "0",
                "-d",
                str(folder),
                url,
            ]
            workers.append(Part(tmp_path / f"worker{number}.log", "worker.Worker", *arguments))
            stack.callback(workers[-1].stop)
        for worker in workers:
            worker.says("Successfully registered with master")
        yield url, tmp_path


def test_spark_submit_on_two_workers_gives_the_same_figures(cluster: tuple[str, Path]) -> None:
    url, folder = cluster
    made = make(folder / "runs" / "r1", 4000)
    script = Path(sys.modules["mqttree.bench.spark.session"].__file__ or "").with_name(
        "__main__.py"
    )
    command = [
        str(HOME / "bin" / "spark-submit"),
        "--master",
        url,
        "--driver-memory",
        "640m",
        "--conf",
        "spark.executor.memory=512m",
        "--conf",
        "spark.driver.host=127.0.0.1",
        *(word for name, value in INTERPRETED.items() for word in ("--conf", f"{name}={value}")),
        str(script),
        "tables",
        (folder / "runs").as_uri(),
        "--out",
        (folder / "tables").as_uri(),
    ]
    done = subprocess.run(
        command,
        env=ENVIRONMENT,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=PATIENCE * 3,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    with (folder / "tables" / "runs.csv").open() as file:
        (run,) = csv.DictReader(file)
    found = {name: float(run[name]) for name in ("published", "expected", "lost", "duplicates")}
    assert found == {
        "published": made.published,
        "expected": made.expected,
        "lost": made.lost,
        "duplicates": made.duplicates,
    }
    assert [len(list((folder / f"worker{number}").glob("app-*/*"))) for number in range(2)] == [
        1,
        1,
    ]
