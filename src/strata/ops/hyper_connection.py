"""Reading from and writing to the residual streams of gated hyper-connections (`qwen4_exp`)."""

import torch


def read_streams(normalized: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    """A block's input, `mean over streams of sigmoid(gate) * normalized`, summed in the order of the streams.

    Args:
        normalized: float32 `[n, streams, width]`.
        gate: float32 `[n, streams * width]`.

    Returns:
        float32 `[n, width]`.
    """
    parts = (gate.sigmoid().view_as(normalized) * normalized).unbind(1)
    return sum(parts[1:], parts[0]) / normalized.shape[1]


def write_streams(residual: torch.Tensor, output: torch.Tensor, inject: torch.Tensor) -> torch.Tensor:
    """Add a block's output to each stream, `2 * sigmoid(inject / streams)` times.

    Args:
        residual: float32 `[n, streams, width]`.
        output: float32 `[n, width]`.
        inject: float32 `[n, streams]`.

    Returns:
        float32 `[n, streams, width]`.
    """
    strength = 2 * torch.sigmoid(inject / residual.shape[1])
    return residual + strength[:, :, None] * output[:, None]
