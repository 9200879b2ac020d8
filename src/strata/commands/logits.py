"""`strata logits`: float32 logits of every position, for comparing engines on the same tokens."""

import json
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import Progress, track

from strata.commands.model_path import model_path
from strata.errors import StrataError
from strata.options import Options
from strata.outputs import whole_file


def run(options: Options) -> None:
    """Read the token list, run the model over it in chunks, and write a `.npy` file.

    Raises:
        StrataError: the token file or a token in it is wrong, the model is scripted, the disk is full.
    """
    from strata.engine.loading import load
    from strata.engine.routing import RouteRecorder
    from strata.formats.requantized import with_dense
    from strata.hardware.cpu import usable_cpus
    from strata.models import open_checkpoint

    if options.model.startswith("scripted:"):
        raise StrataError(f"{options.model}: a scripted model has no logits; name a GGUF file or a folder")
    tokens = read_tokens(options.tokens)
    checkpoint = with_dense(open_checkpoint(model_path(options)), options.dense)
    threads = options.threads or len(usable_cpus())
    cache_bytes = None if options.cache_mib is None else options.cache_mib * 2**20
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("loading")
        loaded = load(
            checkpoint,
            threads,
            options.reference,
            cache_bytes,
            lambda done, total: progress.update(task, completed=done, total=total),
        )
    check_tokens(tokens, loaded.model.config.vocab_size, options.tokens)
    recorder = None if options.record_trace is None else RouteRecorder(loaded.model)
    write_logits(loaded.model, tokens, options.out)
    if recorder is not None:
        recorder.trace().save(options.record_trace)
    print(f"{options.out}: float32 [{len(tokens)}, {loaded.model.config.vocab_size}]")


def read_tokens(path: Path) -> list[int]:
    """The token ids of a JSON file that holds one list of integers."""
    try:
        tokens = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise StrataError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise StrataError(f"{path}: is not JSON: {error}") from error
    if not isinstance(tokens, list) or not tokens:
        raise StrataError(f"{path}: holds no list of token ids, such as [1, 2, 3]")
    for position, token in enumerate(tokens):
        if type(token) is not int:
            raise StrataError(f"{path}: item {position} is {json.dumps(token)[:40]}, not a token id")
    return tokens


def check_tokens(tokens: list[int], vocab_size: int, path: Path) -> None:
    """Raise StrataError for the first id outside the vocabulary."""
    for position, token in enumerate(tokens):
        if not 0 <= token < vocab_size:
            raise StrataError(
                f"{path}: item {position} is token {token}; the model's vocabulary has {vocab_size} tokens"
            )


def write_logits(model, tokens: list[int], out: Path) -> None:
    """Write `[len(tokens), vocab]` float32 to `out`, which appears only when it is complete."""
    import torch

    from strata.models.base import PREFILL_CHUNK

    shape = (len(tokens), model.config.vocab_size)
    starts = range(0, len(tokens), PREFILL_CHUNK)
    state = model.new_state()
    # Written chunk by chunk: 100,000 positions of a 250,000-token vocabulary would not fit in memory.
    with whole_file(out) as partial, partial.open("wb") as file, torch.inference_mode():
        header = {"descr": "<f4", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        for start in track(starts, "logits", console=Console(stderr=True), transient=True):
            logits = model.forward(tokens[start : start + PREFILL_CHUNK], state, all_logits=True)
            file.write(logits.to(torch.float32).numpy().astype("<f4", copy=False).tobytes())
