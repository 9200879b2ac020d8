"""Bytes that a chunk of a prompt takes, by rehearsing it; a program, since the interpreter launches for real.

    python -m tests.helpers.rehearsed_memory CHUNK PART NAME QUANT [NAME QUANT ...]

prints for each model: measured bytes, and those of the formula without gaps and unpacked weights.
"""

import sys
from dataclasses import replace

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from triton import knobs
from triton.runtime.driver import driver

from strata import prompt_memory
from strata.card.rehearsal import Header, Rehearsal, Stage
from strata.formats.description import ModelDescription
from strata.formats.geometry import GEOMETRIES
from strata.formats.mixes import find_mix
from strata.formats.synthetic import SyntheticCheckpoint
from strata.ops.triton.proof.fake_driver import FakeDriver
from strata.ops.triton.proof.targets import TARGETS

LAYERS = 4  # of each kind there is one


class Peak(TorchDispatchMode):
    """The most bytes of tensors without memory at a time, beside those that there were before."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = self._now = 0
        self._alive: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        given = {each.untyped_storage()._cdata for each in args if isinstance(each, torch.Tensor)}
        for tensor in result if isinstance(result, tuple | list) else [result]:
            if not isinstance(tensor, torch.Tensor) or tensor.device.type != "meta":
                continue
            if tensor.untyped_storage()._cdata not in given:  # not a view of what there was before
                self._note(tensor.untyped_storage())
        return result

    def _note(self, storage: torch.UntypedStorage) -> None:
        known = self._alive.get(storage._cdata)
        if known is not None and not known[0].expired():
            return
        for key in [key for key, (reference, _) in self._alive.items() if reference.expired()]:
            self._now -= self._alive.pop(key)[1]
        self._alive[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
        self._now += storage.nbytes()
        self.bytes = max(self.bytes, self._now)


@torch.inference_mode()
def main(chunk: int, part: int, *models: str) -> None:
    driver.set_active(FakeDriver(TARGETS["sm_89"]))
    knobs.runtime.jit_cache_hook = lambda **_: True  # nothing is compiled
    prompt_memory.GAPS = 1.0
    for name, quant in zip(models[::2], models[1::2], strict=True):
        geometry = replace(GEOMETRIES[name], layers=min(LAYERS, GEOMETRIES[name].layers))
        checkpoint = SyntheticCheckpoint(geometry, find_mix(geometry, quant))
        rehearsal = Rehearsal(Header(checkpoint), Stage(1, 8192, torch.float16, None, part))
        with Peak() as peak:
            rehearsal.prompt(chunk)
        print(
            peak.bytes,
            prompt_memory.activation_bytes(ModelDescription.of_checkpoint(checkpoint), chunk, part),
        )


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
