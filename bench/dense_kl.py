"""What `--dense q8_0` does to a model's predictions: the divergence of next-token distributions.

    python bench/dense_kl.py MODEL --text FILE [--other GGUF ...] [--max-tokens N] [--json OUT.json]

Windows of `--window` tokens on the processor's kernels, each from an empty context. For each position the
Kullback-Leibler divergence (nats) from the distribution of the model as stored: with all that becomes Q8_0,
with hyper-connections alone, with the routers alone (which `--dense q8_0` leaves as they are), and of other
files of the same model.
"""

import argparse
import json
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from ours import Strata
from perplexity import losses, text_windows

from strata.formats.checkpoint import Checkpoint, TensorInfo
from strata.formats.quants import FORMATS
from strata.formats.requantized import RequantizedCheckpoint
from strata.hardware.cpu import usable_cpus
from strata.models import open_checkpoint

PARTS = {"hyper-connections alone": r"hc_\w+\.weight$", "routers alone": r"ffn_gate_inp\.weight$"}


class PartlyRequantized(RequantizedCheckpoint):
    """Matrices whose names a pattern finds are Q8_0, whether `--dense q8_0` would take them or not."""

    def __init__(self, stored: Checkpoint, pattern: str):
        super().__init__(stored)
        self.tensors = {n: _q8_0(t) if re.search(pattern, n) else t for n, t in stored.tensors.items()}


def _q8_0(tensor: TensorInfo) -> TensorInfo:
    is_float_matrix = tensor.format in ("F32", "F16", "BF16") and len(tensor.shape) == 2
    if not is_float_matrix or tensor.shape[1] % FORMATS["Q8_0"].block_size:
        return tensor
    return TensorInfo(tensor.name, tensor.shape, "Q8_0", tensor.num_bytes)


def variants(path: Path, others: list[Path]) -> Iterator[tuple[str, Checkpoint]]:
    """What is compared with the model as stored; parts of which nothing changes are left out."""
    stored = open_checkpoint(path)
    all_parts = [("--dense q8_0", RequantizedCheckpoint(stored))]
    all_parts += [(name, PartlyRequantized(stored, pattern)) for name, pattern in PARTS.items()]
    yield from ((name, part) for name, part in all_parts if part.tensors != stored.tensors)
    yield from ((other.name, open_checkpoint(other)) for other in others)


def logits_of(engine: Strata, windows: list[list[int]]) -> list[np.ndarray]:
    """float32 `[tokens, vocab]` of each window."""
    logits = []
    for window in windows:
        engine.reset()
        logits.append(engine.forward(window, all_logits=True))
    return logits


def compare(want: list[np.ndarray], got: list[np.ndarray], windows: list[list[int]]) -> dict[str, float]:
    """Divergence over all positions, how often the likeliest token is the same, and the perplexity."""
    kl, same, loss = [], [], []
    for a, b, window in zip(want, got, windows, strict=True):
        p, q = (torch.from_numpy(x).double().log_softmax(-1) for x in (a, b))
        kl.append((p.exp() * (p - q)).sum(-1))
        same.append(p.argmax(-1) == q.argmax(-1))
        loss.append(losses(b, window))
    of_positions = torch.cat(kl).numpy()
    return {
        "mean KL": of_positions.mean(),
        "median KL": np.median(of_positions),
        "99 % KL": np.quantile(of_positions, 0.99),
        "largest KL": of_positions.max(),
        "same likeliest token": torch.cat(same).double().mean().item(),
        "perplexity": torch.cat(loss).mean().exp().item(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--text", type=Path, required=True, help="UTF-8 text")
    parser.add_argument("--other", type=Path, nargs="*", default=[], help="files of the same model")
    parser.add_argument("--max-tokens", type=int, default=8192, help="of the text")
    parser.add_argument("--window", type=int, default=1024)
    parser.add_argument("--threads", type=int, default=len(usable_cpus()))
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()

    windows = text_windows(args.model, args.text, args.max_tokens, args.window)
    want = logits_of(Strata(open_checkpoint(args.model), args.threads), windows)
    result = {"as stored": compare(want, want, windows)}
    for name, checkpoint in variants(args.model, args.other):
        result[name] = compare(want, logits_of(Strata(checkpoint, args.threads), windows), windows)
        print(
            f"{name}: " + ", ".join(f"{key} {value:.3g}" for key, value in result[name].items()), flush=True
        )
    report = {"model": args.model.name, "positions": sum(map(len, windows)), "variants": result}
    text = json.dumps(report, indent=1)
    if args.json:
        args.json.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
