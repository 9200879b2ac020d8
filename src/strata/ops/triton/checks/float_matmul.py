"""Products with float matrices against torch's in float64, and rows by themselves against rows together."""

from collections.abc import Iterator

import torch

from strata.ops.triton.catalog import Check, Launch, meta
from strata.ops.triton.float_matmul import WIDE, float_matmul, workspace_size
from strata.ops.triton.workspace import Workspace


def _inputs(device: torch.device, rows: int, shape: tuple[int, int], dtype: torch.dtype):
    generator = torch.Generator().manual_seed(rows)
    x = torch.randn(rows, shape[1], generator=generator) * torch.logspace(-2, 2, shape[1])
    weight = torch.randn(shape, generator=generator).to(dtype)
    return x.to(device), weight.to(device)


def _workspace(device: torch.device | str, shape: tuple[int, int]) -> Workspace:
    return Workspace(device, *workspace_size(*shape))


def _compare(device: torch.device) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    for dtype, rows, shape in (
        (torch.bfloat16, 1, (20, 600)),
        (torch.bfloat16, 33, (65, 520)),
        (torch.float16, 3, (16, 40)),
        (torch.float32, 5, (17, 100)),
    ):
        x, weight = _inputs(device, rows, shape, dtype)
        got = float_matmul(x, weight, _workspace(device, shape))
        want = (x.double() @ weight.double().T).float()
        yield f"{dtype}, {rows} rows, {shape[0]} x {shape[1]}".removeprefix("torch."), got, want


def _compare_rows(device: torch.device) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    """Also with numbers of very different size, where an addition that drops other bits would show."""
    shape = (20, 528)
    for dtype, spread in ((torch.bfloat16, 0), (torch.bfloat16, 12), (torch.float32, 0), (torch.float32, 12)):
        x, weight = _inputs(device, 65, shape, dtype)
        generator = torch.Generator().manual_seed(1)
        for t in (x, weight):
            t *= (2.0 ** torch.randint(-spread, spread + 1, t.shape, generator=generator)).to(t)
        workspace = _workspace(device, shape)
        together = float_matmul(x, weight, workspace)
        for rows in (slice(0, 1), slice(5, 9), slice(49, 65)):
            alone = float_matmul(x[rows], weight, workspace)
            name = f"{dtype}, rows {rows.start} to {rows.stop}, spread {spread}"
            yield name.removeprefix("torch."), alone, together[rows]


def _compare_wide(device: torch.device) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    """A matrix with so many columns that a program does all of K, against its last ones by themselves."""
    shape = (WIDE + 25, 264)
    x, weight = _inputs(device, 16, shape, torch.bfloat16)
    for rows in (3, 16):
        wide = float_matmul(x[:rows], weight, _workspace(device, shape))
        some = float_matmul(x[:rows], weight[-40:], _workspace(device, shape))
        yield f"{rows} rows", wide[:, -40:], some


def _launch(rows: int, shape: tuple[int, int], dtype: torch.dtype):
    return float_matmul(meta(rows, shape[1]), meta(*shape, dtype=dtype), _workspace("meta", shape))


CHECKS = [
    Check("float_matmul", _compare, 3e-6),
    Check("float_matmul, rows alone", _compare_rows),
    Check("float_matmul, wide", _compare_wide),
]
LAUNCHES = [
    Launch(
        f"float_matmul {dtype} {rows}".replace("torch.", ""),
        lambda rows=rows, dtype=dtype: _launch(rows, (512, 2560), dtype),
    )
    for dtype in (torch.bfloat16, torch.float16, torch.float32)
    for rows in (1, 16, 1024)
] + [
    Launch(f"float_matmul wide {rows}", lambda rows=rows: _launch(rows, (8192, 2560), torch.bfloat16))
    for rows in (1, 16)
]
