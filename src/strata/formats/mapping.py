"""Files that are mapped into memory."""

import mmap

import numpy as np


def let_go(view: np.ndarray) -> None:
    """Unmap the pages of a mapped file behind `view`: memory shall not hold a model twice.

    They stay in the system's file cache as long as there is room. What can be written to, or is no mapped
    file, is left alone.
    """
    owner: object = view
    while isinstance(owner, np.ndarray):
        owner = owner.base
    if isinstance(owner, memoryview):
        owner = owner.obj
    if not isinstance(owner, mmap.mmap) or view.flags.writeable or not hasattr(mmap, "MADV_DONTNEED"):
        return
    offset = view.ctypes.data - np.frombuffer(owner, dtype=np.uint8).ctypes.data
    page = offset // mmap.PAGESIZE * mmap.PAGESIZE
    owner.madvise(mmap.MADV_DONTNEED, page, offset + view.nbytes - page)
