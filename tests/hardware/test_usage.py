"""What processes and the machine use, as far as it can be known beforehand."""

import mmap
import os
import time

import psutil

from strata.hardware.usage import machine_use, process_use, process_work


def test_work_shows_as_processor_time_and_memory():
    before, machine, work = process_use(), machine_use(), process_work(os.getpid())
    end = time.process_time() + 0.3
    while time.process_time() < end:
        pass
    block = mmap.mmap(-1, 32 << 20)  # from the system: freed memory of this process would not show
    block.write(b"x" * len(block))
    after = process_use(os.getpid())
    assert before is not None and after is not None and len(block) == 32 << 20
    assert after.cpu_s - before.cpu_s > 0.2
    assert after.rss_bytes - before.rss_bytes > 16 << 20
    assert (after.pid, after.threads >= 1) == (os.getpid(), True)
    done = process_work(os.getpid())
    assert work is not None and done is not None
    assert done.cpu_s - work.cpu_s > 0.2 and done.disk_bytes >= work.disk_bytes >= 0
    assert machine_use().cpu_busy_s - machine.cpu_busy_s > 0.1
    assert 0 < machine.ram_available_bytes <= machine.ram_bytes
    assert machine.cpus == psutil.cpu_count()


def test_a_process_that_has_ended():
    assert process_use(2**22 + 1) is process_work(2**22 + 1) is None
