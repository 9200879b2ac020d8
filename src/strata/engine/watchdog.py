"""Finds an engine that is frozen: asked, it answers nothing, and meanwhile it computes and reads nothing.

Silence alone is no sign of that: one step may take minutes on a slow machine or a slow disk.
"""

import asyncio
from collections.abc import Awaitable, Callable

from strata.hardware.usage import ProcessWork, process_work

STALL_S = 90.0
_ROUNDS = 5  # so that one long sleep, of the machine or of this process, is not taken for the engine's
_IDLE = 0.01  # of a processor: what a process may use that does nothing


async def until_frozen(
    pid: int, answer: Callable[[], Awaitable[object]], is_busy: Callable[[], bool], stall_s: float = STALL_S
) -> None:
    """Return when process `pid` has been frozen for about `stall_s` seconds.

    Args:
        pid: the engine's.
        answer: asks it for a sign of life, and waits for that.
        is_busy: whether it has something to do; else nothing is asked of it.
        stall_s: seconds.
    """
    pause_s = stall_s / (2 * _ROUNDS)
    num_still, before = 0, process_work(pid)
    while num_still < _ROUNDS:
        await asyncio.sleep(pause_s)
        lives = not is_busy() or await _comes_within(answer, pause_s)
        now = process_work(pid)
        num_still = 0 if lives or _has_worked(before, now, 2 * pause_s) else num_still + 1
        before = now


async def _comes_within(answer: Callable[[], Awaitable[object]], seconds: float) -> bool:
    try:
        await asyncio.wait_for(answer(), seconds)
    except TimeoutError:
        return False
    return True


def _has_worked(before: ProcessWork | None, now: ProcessWork | None, seconds: float) -> bool:
    if before is None or now is None:  # it cannot be told
        return True
    return now.cpu_s - before.cpu_s > _IDLE * seconds or now.disk_bytes != before.disk_bytes
