"""Clients of a scenario do not wait until brokers have given up the core."""

from __future__ import annotations

import os
import subprocess
import sys

ASK = """
import os
from mqttree.bench.lab.priority import be_woken_in_time
be_woken_in_time()
print(os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0))
"""


def may_have_real_time_priority() -> bool:
    ask = "import os; os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))"
    done = subprocess.run([sys.executable, "-c", ask], capture_output=True, check=False)
    return done.returncode == 0


def test_the_generator_has_real_time_priority_where_the_kernel_allows_it() -> None:
    done = subprocess.run([sys.executable, "-c", ASK], capture_output=True, text=True, check=True)
    policy, nice = map(int, done.stdout.split())
    if may_have_real_time_priority():
        assert policy == os.SCHED_RR
    else:
        assert policy == os.SCHED_OTHER
        assert nice <= os.getpriority(os.PRIO_PROCESS, 0)


LEAVE = """
import os
from mqttree.bench.lab.priority import woken_in_time
before = os.sched_getscheduler(0)
with woken_in_time():
    within = os.sched_getscheduler(0)
print(before, within, os.sched_getscheduler(0))
"""


def test_who_asks_has_real_time_priority_only_while_it_asks() -> None:
    done = subprocess.run([sys.executable, "-c", LEAVE], capture_output=True, text=True, check=True)
    before, within, after = map(int, done.stdout.split())
    assert after == before
    assert within == (os.SCHED_RR if may_have_real_time_priority() else before)
