"""Keys and values in pages, and attention over them, against `ops/cached_attention.py`'s parts."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from strata.ops.attention import attend
from strata.ops.rms_norm import rms_norm
from strata.ops.rotary import rotate
from strata.ops.triton.attention import Parts, Plan, attend_prompt, attend_window, plan_attention
from strata.ops.triton.catalog import Check, Launch, meta
from strata.ops.triton.kv import GROUP, PagedKV, append_kv, gate_of
from strata.ops.triton.quantize import quantize_activations
from strata.ops.triton.rotary import angles

_EPSILON = 1e-6
_Cases = Iterator[tuple[str, torch.Tensor, torch.Tensor]]


@dataclass(frozen=True, slots=True)
class Heads:
    """The attention of a model, as far as it matters here."""

    heads: int
    kv_heads: int
    dim: int
    dtype: torch.dtype = torch.float16
    window: int = 0


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    """float32 on the CPU, normally distributed, the same every time."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def page_table(lanes: int, pages: int, device: torch.device) -> torch.Tensor:
    """int32 `[lanes, pages]`: a pool's pages in disorder."""
    order = torch.randperm(lanes * pages, generator=torch.Generator().manual_seed(1))
    return order.view(lanes, pages).int().to(device)


def filled_pages(shape: Heads, lanes: int, pages: int, page: int, device: torch.device) -> PagedKV:
    """Pages full of random keys and values."""
    cells = (lanes * pages, shape.kv_heads, page)
    x = random(2, *cells, shape.dim, seed=2)
    scales = ()
    if shape.dtype == torch.int8:
        groups = x.unflatten(-1, (-1, min(GROUP, shape.dim)))
        factors = (groups.abs().amax(-1) / 127).half()
        x = (groups / factors[..., None]).round().clamp(-127, 127).flatten(-2)
        scales = factors.to(device)
    return PagedKV(*x.to(shape.dtype).to(device), page_table(lanes, pages, device), *scales)


def lane_values(kv: PagedKV, lane: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A lane's keys and values, float32 `[tokens, kv_heads, dim]` on the CPU."""
    table = kv.page_table[lane].long().cpu()
    out = []
    for pages, scales in ((kv.k, kv.k_scales), (kv.v, kv.v_scales)):
        x = pages.cpu()[table].half()
        if scales is not None:
            factors = scales.cpu()[table].repeat_interleave(x.shape[-1] // scales.shape[-1], -1)
            x = x * factors
        out.append(x.float().transpose(1, 2).flatten(0, 1))
    return out[0], out[1]


def reference(
    q: torch.Tensor, gate: torch.Tensor, lane: torch.Tensor, position: torch.Tensor, kv: PagedKV, window: int
) -> torch.Tensor:
    """float32 `[rows, heads * dim]`; rows of lane -1 are zero."""
    q, gate = q.cpu(), gate.cpu()
    out = torch.zeros_like(q)
    for row, (which, at) in enumerate(zip(lane.tolist(), position.tolist(), strict=True)):
        if which >= 0:
            k, v = lane_values(kv, which)
            x = attend(q[row : row + 1], k[: at + 1], v[: at + 1], q.shape[2] ** -0.5, window or None)
            out[row] = x[0] * gate[row].sigmoid()
    return out.flatten(1)


def small_plan(kv: PagedKV, shape: Heads, block: int = 0, budget: int = 0) -> Plan:
    """A plan whose splits grow early, so that few keys show it."""
    return plan_attention(kv, shape.heads, shape.window, block, budget, min_split=32, max_splits=3)


def run_window(q, lane, position, kv, plan: Plan, gate, blocks=None, quantized=None) -> torch.Tensor:
    out = torch.zeros(q.shape[0], plan.heads * plan.kv.dim, device=q.device)
    parts = Parts.new(plan, q.shape[0], q.device)
    attend_window(q, lane, position, kv, plan, plan.kv.dim**-0.5, parts, out, gate, blocks, quantized)
    return out


def run_prompt(q, lane, position, kv, plan: Plan, gate, blocks=None) -> torch.Tensor:
    out = torch.zeros(q.shape[0], plan.heads * plan.kv.dim, device=q.device)
    attend_prompt(q, lane, position, kv, plan, plan.kv.dim**-0.5, out, gate, blocks)
    return out


def _rows(pairs: list[tuple[int, int]], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    lane, position = torch.tensor(pairs, dtype=torch.int32, device=device).T.contiguous()
    return lane, position


SHAPES = [
    Heads(2, 2, 64),
    Heads(6, 2, 32),
    Heads(12, 1, 128, torch.int8),
    Heads(3, 1, 16, window=40),
]
_WINDOW = [(1, 96), (-1, 0), (0, 95)]


def _compare_append(device: torch.device) -> _Cases:
    yield from _append_case(Heads(2, 1, 16), False, False, device)
    yield from _append_case(Heads(2, 1, 64, torch.int8), True, True, device)
    yield from _append_case(Heads(2, 1, 128, torch.int8), False, True, device)


def _append_case(shape: Heads, interleaved: bool, gated: bool, device: torch.device) -> _Cases:
    rows, heads, dim, pairs = 5, shape.heads, shape.dim, shape.dim // 4
    width = (2 if gated else 1) * heads * dim
    x = random(rows, width + 2 * shape.kv_heads * dim, seed=3) * 3
    q, k, v = x.split([width, shape.kv_heads * dim, shape.kv_heads * dim], 1)
    norms = random(2, dim, seed=4) + 1
    lane, position = _rows([(1, 7), (1, 8), (-1, 5), (0, 0), (0, 31)], device)
    inv_freq = 1e4 ** -(torch.arange(pairs) / pairs)
    theta = position.cpu()[:, None] * inv_freq
    kv = PagedKV.new(page_table(2, 2, device), 4, shape.kv_heads, 16, dim, shape.dtype)
    cos, sin = torch.empty(2, rows, pairs, device=device)
    angles(position, inv_freq.to(device), 1.0, cos, sin)
    q_out = torch.zeros(rows, heads, dim, device=device)
    q, k, v = x.to(device).split([q.shape[1], k.shape[1], v.shape[1]], 1)
    append_kv(
        q, k, v, cos, sin, lane, position, kv, q_out, *norms.to(device), _EPSILON, interleaved=interleaved
    )
    q_view = q.cpu().unflatten(1, (heads, -1))[..., :dim]
    want = rotate(rms_norm(q_view, norms[0], _EPSILON), theta.cos(), theta.sin(), interleaved)
    want[2] = 0
    case = f"{shape.dtype} {dim}{' interleaved' * interleaved}{' gated' * gated}"
    yield f"q {case}", q_out, want
    if gated:
        yield f"gate {case}", gate_of(q, heads), q.cpu().unflatten(1, (heads, 2, -1))[:, :, 1]
    k_view, v_view = (tensor.cpu().unflatten(1, (shape.kv_heads, -1)) for tensor in (k, v))
    rotated = rotate(rms_norm(k_view, norms[1], _EPSILON), theta.cos(), theta.sin(), interleaved)
    for row, (which, at) in enumerate(zip(lane.tolist(), position.tolist(), strict=True)):
        if which >= 0:
            # half a step of amax / 127 at most, or of float16's last bit
            for got, exact in zip(lane_values(kv, which), (rotated[row], v_view[row]), strict=True):
                step = exact.abs().amax() / (127 if shape.dtype == torch.int8 else 1024)
                far = ((got[at] - exact).abs() - 0.6 * step).clamp(min=0)
                yield f"cells {case} {row}", far, torch.zeros_like(far)


def _compare_angles(device: torch.device) -> _Cases:
    position = torch.tensor([0, 1, 77, 4095, 262143, 1048575], dtype=torch.int32)
    inv_freq = 1e7 ** -(torch.arange(32) / 32)
    for back in (0, 3):
        theta = ((position - back).clamp(min=0)[:, None] * inv_freq).double()
        cos, sin = torch.empty(2, 6, 32, device=device)
        angles(position.to(device), inv_freq.to(device), 1.5, cos, sin, back)
        yield f"cos {back}", cos, (theta.cos() * 1.5).float()
        yield f"sin {back}", sin, (theta.sin() * 1.5).float()


def _compare_window(device: torch.device) -> _Cases:
    lane, position = _rows(_WINDOW, device)
    for shape in SHAPES:
        kv = filled_pages(shape, 2, 8, 16, device)
        q, gate = random(2, len(_WINDOW), shape.heads, shape.dim, seed=5).to(device) * 3
        got = run_window(q, lane, position, kv, small_plan(kv, shape), gate)
        yield str(shape), got, reference(q, gate, lane, position, kv, shape.window)


def _compare_bits(device: torch.device) -> _Cases:
    """A row of a window, of a prompt, and alone."""
    for shape in SHAPES[2:]:
        kv = filled_pages(shape, 1, 8, 16, device)
        plan = small_plan(kv, shape)
        lane, position = _rows([(0, at) for at in (95, 96)], device)
        q, gate = random(2, len(lane), shape.heads, shape.dim, seed=6).to(device) * 3
        together = run_window(q, lane, position, kv, plan, gate)
        alone = [
            run_window(q[i : i + 1], lane[i : i + 1], position[i : i + 1], kv, plan, gate[i : i + 1])
            for i in range(len(lane))
        ]
        yield f"window {shape}", together, torch.cat(alone)
        yield f"prompt {shape}", run_prompt(q, lane, position, kv, plan, gate), together
    lane[-1:] = -1
    part = run_prompt(q, lane, position, kv, plan, gate)
    yield "padded prompt", part[:-1], together[:-1]


def _compare_quantized(device: torch.device) -> _Cases:
    """Of each head one block, or two."""
    lane, position = _rows([(1, 96), (0, 95)], device)
    for shape in (SHAPES[2], Heads(4, 2, 256)):
        kv = filled_pages(shape, 2, 8, 16, device)
        q, gate = random(2, len(lane), shape.heads, shape.dim, seed=5).to(device) * 3
        codes, scales = quantize_activations(torch.ones(len(lane), shape.heads * shape.dim, device=device))
        out = run_window(q, lane, position, kv, small_plan(kv, shape), gate, None, (codes, scales))
        right_codes, right_scales = quantize_activations(out)
        yield f"codes {shape}", codes, right_codes
        yield f"scales {shape}", scales, right_scales


def _launch_kv(rows: int, shape: Heads, tokens: int, gated: bool, prompt: bool = False) -> None:
    kv_heads, page, dim = shape.kv_heads, 16, shape.dim
    pages = tokens // page
    size = (pages, kv_heads, page)
    scales = [meta(*size, dim // 64, dtype=torch.float16) for _ in range(2)]
    cells = [meta(*size, dim, dtype=shape.dtype) for _ in range(2)]
    table = meta(4, pages, dtype=torch.int32)
    kv = PagedKV(*cells, table, *(scales if shape.dtype == torch.int8 else ()))
    ints = meta(rows, dtype=torch.int32)
    cos = meta(rows, 32)
    angles(ints, meta(32), 1.0, cos, cos)
    width = (1 + gated) * shape.heads * dim
    x = meta(rows, width + 2 * kv_heads * dim)
    q, k, v = x.split([width, kv_heads * dim, kv_heads * dim], 1)
    q_out, out = meta(rows, shape.heads, dim), meta(rows, shape.heads * dim)
    append_kv(q, k, v, cos, cos, ints, ints, kv, q_out, meta(dim), meta(dim), _EPSILON)
    plan = plan_attention(kv, shape.heads)
    gate = gate_of(q, shape.heads) if gated else None
    if prompt:
        attend_prompt(q_out, ints, ints, kv, plan, dim**-0.5, out, gate)
    else:
        parts = Parts(*(meta(rows, shape.heads, plan.splits, *last) for last in ((), (), (dim,))))
        quantized = None
        if dim % 128 == 0:
            quantized = meta(*out.shape, dtype=torch.int8), meta(rows, out.shape[1] // 128)
        attend_window(q_out, ints, ints, kv, plan, dim**-0.5, parts, out, gate, quantized=quantized)


def _launch_append(shape: Heads) -> None:
    """As Llama does: neighbours are pairs, no norms."""
    rows, dim = 4, shape.dim
    size = (256, shape.kv_heads, 16, dim)
    kv = PagedKV(*(meta(*size, dtype=shape.dtype) for _ in range(2)), meta(4, 64, dtype=torch.int32))
    widths = [heads * dim for heads in (shape.heads, shape.kv_heads, shape.kv_heads)]
    q, k, v = meta(rows, sum(widths)).split(widths, 1)
    ints, cos = meta(rows, dtype=torch.int32), meta(rows, dim // 2)
    append_kv(q, k, v, cos, cos, ints, ints, kv, meta(rows, shape.heads, dim), interleaved=True)


CHECKS = [
    Check("rotary angles", _compare_angles, 1e-6),
    Check("append_kv", _compare_append, 3e-6),
    Check("attend_window", _compare_window, 1e-5),
    Check("attend bits", _compare_bits),
    Check("attend_window, quantised", _compare_quantized),
]
_QWEN, _NEXT = Heads(16, 2, 256), Heads(24, 2, 256, torch.int8)
_SMALL = Heads(9, 3, 64)
LAUNCHES = [
    Launch("attend_window 16/2x256", lambda: _launch_kv(4, _QWEN, 1 << 17, True)),
    Launch("attend_prompt 16/2x256", lambda: _launch_kv(512, _QWEN, 1 << 17, True, prompt=True)),
    Launch("attend_window 24/2x256 int8", lambda: _launch_kv(4, _NEXT, 1 << 17, True)),
    Launch("attend_prompt 24/2x256 int8", lambda: _launch_kv(512, _NEXT, 1 << 17, True, prompt=True)),
    Launch("attend_window 32/4x128", lambda: _launch_kv(4, Heads(32, 4, 128), 1 << 15, False)),
    Launch("attend_prompt 32/4x128", lambda: _launch_kv(512, Heads(32, 4, 128), 1 << 15, False, prompt=True)),
    Launch("attend_window 32/32x128", lambda: _launch_kv(4, Heads(32, 32, 128), 1 << 15, False)),
    Launch("append_kv llama", lambda: _launch_append(Heads(32, 8, 128))),
    Launch("attend_window 9/3x64", lambda: _launch_kv(4, _SMALL, 1 << 13, False)),
    Launch("attend_prompt 9/3x64", lambda: _launch_kv(512, _SMALL, 1 << 13, False, prompt=True)),
]
