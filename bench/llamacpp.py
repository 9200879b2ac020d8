"""llama.cpp through the low-level API of llama-cpp-python 0.3.36, for the scripts that compare with it.

Install it built for the machine, as a native program would be, not from a wheel of another one:
`CMAKE_ARGS=-DGGML_NATIVE=ON pip install --no-binary llama-cpp-python llama-cpp-python==0.3.36`.
"""

import ctypes
from pathlib import Path

import llama_cpp
import numpy as np

BATCH = 512  # llama.cpp's own default, of n_ubatch too


@llama_cpp.llama_log_callback
def _silence(level: int, text: bytes, data: ctypes.c_void_p) -> None:
    pass


llama_cpp.llama_log_set(_silence, ctypes.c_void_p(0))
llama_cpp.llama_backend_init()


class LlamaCpp:
    """A model and one sequence, which `forward` appends to; settings are llama.cpp's defaults.

    Args:
        path: GGUF file.
        context: the most tokens of the sequence.
        threads: of both single tokens and batches.
        repack: let llama.cpp lay weights out anew for the processor; its AMX code crashes on some machines.
    """

    def __init__(self, path: Path, context: int, threads: int, repack: bool = True):
        model_params = llama_cpp.llama_model_default_params()
        model_params.n_gpu_layers = 0
        model_params.use_extra_bufts = repack
        self.model = llama_cpp.llama_model_load_from_file(str(path).encode(), model_params)
        if not self.model:
            raise RuntimeError(f"{path}: llama.cpp cannot load it")
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = context
        params.n_batch = BATCH
        params.n_threads = params.n_threads_batch = threads
        self.context = llama_cpp.llama_init_from_model(self.model, params)
        if not self.context:
            raise RuntimeError(f"{path}: llama.cpp cannot make a context of {context} tokens")
        self.vocab = llama_cpp.llama_model_get_vocab(self.model)
        self.vocab_size = llama_cpp.llama_vocab_n_tokens(self.vocab)

    def close(self) -> None:
        llama_cpp.llama_free(self.context)
        llama_cpp.llama_model_free(self.model)

    def set_threads(self, threads: int) -> None:
        llama_cpp.llama_set_n_threads(self.context, threads, threads)

    def reset(self) -> None:
        """Begin an empty sequence."""
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)

    def forward(self, tokens: list[int], all_logits: bool = False) -> np.ndarray:
        """Append `tokens`; float32 logits `[1, vocab]` of the last, valid until the next call, or of all."""
        parts = []
        for start in range(0, len(tokens), BATCH):
            part = tokens[start : start + BATCH]
            ids = (llama_cpp.llama_token * len(part))(*part)  # the batch only points to it
            wanted = (ctypes.c_int8 * len(part))(*[1] * len(part))
            batch = llama_cpp.llama_batch_get_one(ids, len(part))
            if all_logits:
                batch.logits = wanted
            status = llama_cpp.llama_decode(self.context, batch)
            if status:
                raise RuntimeError(f"llama_decode of {len(part)} tokens returned {status}")
            rows = len(part) if all_logits else 1
            logits = llama_cpp.llama_get_logits(self.context)
            parts.append(np.ctypeslib.as_array(logits, shape=(rows, self.vocab_size)))
            if all_logits:
                parts[-1] = parts[-1].copy()
        return np.concatenate(parts) if all_logits else parts[-1]

    def tokenize(self, text: str) -> list[int]:
        """Ids of a text whose control tokens are meant, without a beginning-of-sequence token."""
        raw = text.encode()
        buffer = (llama_cpp.llama_token * (len(raw) + 8))()
        count = llama_cpp.llama_tokenize(self.vocab, raw, len(raw), buffer, len(buffer), False, True)
        return list(buffer[:count])


# ggml's format -> llama.cpp's file type, where the names differ
_FILE_TYPES = {"Q3_K": "Q3_K_S", "Q4_K": "Q4_K_S", "Q5_K": "Q5_K_S", "IQ2_S": "IQ2_M", "MXFP4": "MXFP4_MOE"}


def quantize(source: Path, out: Path, format: str, threads: int, experts_only: bool = False) -> None:
    """Write `source` anew with every matrix in `format` where its rows allow, by llama.cpp's own quantiser.

    Formats of three bits and fewer ask for an importance matrix: every weight is declared equally important.
    With `experts_only` just the experts' gate and up matrices are in `format`, the others in Q8_0.
    """
    # not needed, and slow to import, where speed is measured
    from strata.formats.quants import FORMATS
    from strata.models import open_checkpoint

    checkpoint = open_checkpoint(source)
    ones: list[llama_cpp.llama_model_imatrix_data] = []
    keep = []
    for tensor in checkpoint.tensors.values():
        if len(tensor.shape) > 1:
            experts = tensor.shape[0] if len(tensor.shape) == 3 else 1
            values = np.ones(experts * tensor.shape[-1], np.float32)
            keep.append(values)
            pointer = values.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
            ones.append(llama_cpp.llama_model_imatrix_data(tensor.name.encode(), pointer, values.size))
    ones.append(llama_cpp.llama_model_imatrix_data(None, None, 0))
    params = llama_cpp.llama_model_quantize_default_params()
    file_type = "Q8_0" if experts_only else _FILE_TYPES.get(format, format)
    params.ftype = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{file_type}")
    if experts_only:
        type_id = FORMATS[format].ggml_id
        override = llama_cpp.llama_model_tensor_override(b"ffn_(gate|up)_exps", type_id)
        params.tt_overrides = (llama_cpp.llama_model_tensor_override * 2)(override)  # a zero ends the list
    params.nthread = threads
    params.pure = not experts_only
    params.allow_requantize = True
    params.imatrix = (llama_cpp.llama_model_imatrix_data * len(ones))(*ones)
    status = llama_cpp.llama_model_quantize(str(source).encode(), str(out).encode(), ctypes.byref(params))
    if status:
        raise RuntimeError(f"llama.cpp cannot write {source} in {format} (status {status})")
