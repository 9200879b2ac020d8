"""Weights in the planes of their quant formats, all in memory: what the processor's kernels compute with."""

from collections.abc import Callable

import numpy as np
import torch

from strata.formats.checkpoint import Checkpoint
from strata.layers.weights import Stack, Weights
from strata.native import ExpertPlanes, Experts, Matrix, _core, formats, ops
from strata.native.matrix import empty_planes, pack, pack_scales, plane_bytes

_FLOAT_TYPES = {"BF16": torch.bfloat16, "F16": torch.float16}


class PlaneWeights(Weights):
    """Each matrix packed once, by `load` or when it is first asked for; vectors are decoded."""

    ops = ops

    def __init__(self, checkpoint: Checkpoint):
        super().__init__(checkpoint)
        self._vectors: dict[str, torch.Tensor] = {}
        self._matrices: dict[str, _core.Matrix] = {}
        self._experts: dict[int, _core.Experts] = {}

    def get(self, name: str) -> torch.Tensor:
        vector = self._vectors.get(name)
        if vector is None:
            vector = self._vectors[name] = self.read(name)
        return vector

    def matrix(self, name: str) -> _core.Matrix:
        matrix = self._matrices.get(name)
        if matrix is None:
            matrix = self._matrices[name] = self._pack_matrix(name)
        return matrix

    def experts(self, key: int) -> _core.Experts:
        experts = self._experts.get(key)
        if experts is None:
            experts = self._experts[key] = self._pack_experts(*self.stacks[key])
        return experts

    def load(self, progress: Callable[[int, int], None]) -> None:
        sizes = [self._num_bytes(name) for name in self.matrices]
        sizes += [sum(map(self._stack_bytes, stacks)) for stacks in self.stacks]
        done, total = 0, sum(sizes)
        calls = [(self.matrix, name) for name in self.matrices]
        calls += [(self.experts, key) for key in range(len(self.stacks))]
        for (call, argument), size in zip(calls, sizes, strict=True):
            progress(done, total)
            call(argument)
            done += size
        progress(done, total)

    def matrix_bytes(self) -> int:
        """Bytes that the planes of all matrices but the experts' take in memory."""
        return sum(plane_bytes(self._format(n), *shape) for n, shape in self.matrices.items())

    def expert_bytes(self) -> int:
        """Bytes that the planes of all experts take in memory."""
        return sum(
            stack.experts * plane_bytes(self.stack_format(stack), stack.num_out, stack.num_in)
            for stacks in self.stacks
            for stack in stacks
        )

    def _num_bytes(self, name: str) -> int:
        return self.checkpoint.tensors[name].num_bytes

    def _stack_bytes(self, stack: Stack) -> int:
        return sum(map(self._num_bytes, stack.names))

    def _format(self, name: str) -> str:
        """The format of the planes of tensor `name`: its own, or one that holds its values exactly."""
        format = self.checkpoint.tensors[name].format
        return format if format in formats() else "F32"

    def stack_format(self, stack: Stack) -> str:
        """One format for all experts of a layer."""
        stored = {self._format(name) for name in stack.names}
        return stored.pop() if len(stored) == 1 else "F32"

    def _blocks(self, name: str, index: int | None, format: str) -> np.ndarray:
        """Tensor `name` or slice `[index]` of it in blocks of `format`, uint8."""
        raw = self.checkpoint.raw(name, index)
        if raw is not None and self.checkpoint.tensors[name].format == format:
            return raw
        values = self.checkpoint.read(name, index).contiguous()
        return values.to(_FLOAT_TYPES.get(format, torch.float32)).view(torch.uint8).numpy()

    def _pack_matrix(self, name: str) -> _core.Matrix:
        format, scale = self._format(name), self.scale(name)
        if format == "F8_E4M3":
            codes, scales = self.checkpoint.read_fp8(name)
            return Matrix.from_fp8(*self.matrices[name], codes.numpy(), scales.numpy()).core
        blocks = self._blocks(name, None, format)
        return Matrix.from_gguf(
            format, *self.matrices[name], blocks, 1 if scale is None else scale.item()
        ).core

    def _pack_experts(self, gate: Stack, up: Stack, down: Stack) -> _core.Experts:
        return Experts(gate.num_in, gate.num_out, *map(self._pack_stack, (gate, up, down))).core

    def _pack_stack(self, stack: Stack) -> ExpertPlanes:
        format = self.stack_format(stack)
        size = plane_bytes(format, stack.num_out, stack.num_in)
        planes = empty_planes(stack.experts * size).reshape(stack.experts, size)
        for expert in range(stack.experts):
            self.pack_expert(stack, expert, planes[expert])
        return ExpertPlanes(format, planes, self.stack_scales(stack))

    def pack_expert(self, stack: Stack, expert: int, planes: np.ndarray) -> None:
        """Write one expert's matrix into `planes`, uint8 `[plane bytes]` of `stack_format`."""
        format = self.stack_format(stack)
        if format == "F8_E4M3":
            codes, scales = self.checkpoint.read_fp8(*stack.slice(expert))
            pack(format, stack.num_out, stack.num_in, codes.numpy(), planes)
            pack_scales(stack.num_out, stack.num_in, scales.numpy(), planes)
            return
        blocks = self._blocks(*stack.slice(expert), format).reshape(-1)
        row_bytes = len(blocks) // self._num_rows(stack)
        first = stack.first_row * row_bytes
        pack(format, stack.num_out, stack.num_in, blocks[first : first + stack.num_out * row_bytes], planes)

    def stack_scales(self, stack: Stack) -> tuple[float, ...]:
        """A factor of each expert's products, where the file has them beside the matrices; else nothing."""
        scales = [self.scale(*stack.slice(expert)) for expert in range(stack.experts)]
        return () if scales[0] is None else tuple(1.0 if s is None else s.item() for s in scales)

    def _num_rows(self, stack: Stack) -> int:
        """Rows of an expert's slice of its tensor: more than the matrix has where gate and up are fused."""
        return self.checkpoint.tensors[stack.names[0]].shape[-2]
