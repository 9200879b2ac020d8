"""The processor's kernels: quantised matrices in planes, and their exact products.

The extension module `_core` is built from the C++ beside this file. docs/NUMERICS.md is its contract.
"""

from strata.native.experts import ExpertPlanes, Experts
from strata.native.jobs import JobError, JobMemory, JobServer, JobStatus
from strata.native.matrix import Activations, Matrix, formats, isa, num_threads, set_num_threads

__all__ = [
    "Activations",
    "ExpertPlanes",
    "Experts",
    "JobError",
    "JobMemory",
    "JobServer",
    "JobStatus",
    "Matrix",
    "formats",
    "isa",
    "num_threads",
    "set_num_threads",
]
