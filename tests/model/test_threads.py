"""Threads of OpenMP that parallel work leaves behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

# In a process of its own: threads of other tests come and go.
SCRIPT = """
import time
from pathlib import Path
import torch
from paceline.model.threads import release_threads

def count(expected=None):
    # A thread's end takes a moment.
    for _ in range(500):
        number = len(list(Path("/proc/self/task").iterdir()))
        if expected is None or number == expected:
            break
        time.sleep(0.01)
    return number

torch.set_num_threads(3)
release_threads()  # nothing to let go is no error
alone = count()
torch.ones(1 << 20).exp_()
working = count()
release_threads()
released = count(alone)
torch.ones(1 << 20).exp_()
print(working - alone, released - alone, count() - alone)
"""


@pytest.mark.skipif(
    not Path("/proc/self/task").is_dir(), reason="counts threads as Linux lists them"
)
def test_the_threads_of_parallel_work_are_let_go_and_come_back() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["2", "0", "2"], done.stderr
