"""The native ops against torch's, and each row of a batch against the row alone, in bits."""

import numpy as np
import pytest
import torch

from strata.native import _core, ops
from strata.ops import activation
from strata.ops.activation import swiglu
from strata.ops.hyper_connection import read_streams, write_streams
from strata.ops.quantized_experts import swiglu as exact_swiglu
from strata.ops.rms_norm import add_rms_norm, rms_norm
from strata.ops.rotary import rotate
from strata.ops.router import route

WIDTHS = (1, 8, 31, 33, 576)
ROWS = 40


def random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def close(got: torch.Tensor, want: torch.Tensor) -> None:
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)


def alone(op, x: torch.Tensor) -> torch.Tensor:
    """`op` of each row by itself."""
    return torch.cat([op(x[i : i + 1]) for i in range(len(x))])


@pytest.mark.parametrize("width", WIDTHS)
def test_rms_norm(width: int, isa, threads):
    x, weight = random(ROWS, width), random(width)
    got = ops.rms_norm(x, weight, 1e-5)
    close(got, rms_norm(x, weight, 1e-5))
    assert torch.equal(alone(lambda row: ops.rms_norm(row, weight, 1e-5), x), got)


def test_rms_norm_of_streams_and_of_parts_of_rows(isa, threads):
    x, weight = random(ROWS, 3, 40), random(3, 40)
    close(ops.rms_norm(x, weight, 1e-6), rms_norm(x, weight, 1e-6))
    part = random(ROWS, 3, 64)[..., 8:48]  # not contiguous, as a projection that was split
    assert torch.equal(ops.rms_norm(part, weight, 1e-6), ops.rms_norm(part.contiguous(), weight, 1e-6))


def test_add_rms_norm_is_the_sum_and_its_norm(isa, threads):
    x, y, weight = random(ROWS, 576), random(ROWS, 2 * 576)[:, 576:], random(576)
    total, normalized = ops.add_rms_norm(x, y, weight, 1e-5)
    assert torch.equal(total, x + y)
    assert torch.equal(normalized, ops.rms_norm(x + y, weight, 1e-5))
    close(normalized, add_rms_norm(x, y, weight, 1e-5)[1])


@pytest.mark.parametrize(("dim", "pairs"), [(64, 32), (128, 32), (10, 5), (20, 7)])
@pytest.mark.parametrize("interleaved", [False, True])
def test_rotation_is_torch_in_bits(dim: int, pairs: int, interleaved: bool, isa, threads):
    x, cos, sin = random(ROWS, 9, 2 * dim)[..., dim:], random(ROWS, pairs), random(pairs, ROWS).T.contiguous()
    assert torch.equal(ops.rotate(x, cos, sin, interleaved), rotate(x, cos, sin, interleaved))


@pytest.mark.parametrize("width", WIDTHS)
def test_swiglu_is_the_contract_in_bits(width: int, isa, threads):
    both = 20 * random(ROWS, 2 * width)
    gate, up = both.chunk(2, -1)
    got = ops.swiglu(gate, up)
    np.testing.assert_array_equal(got.numpy(), exact_swiglu(gate.numpy(), up.numpy()))
    close(got, swiglu(gate, up))


@pytest.mark.parametrize("name", ["silu", "sigmoid", "softplus"])
@pytest.mark.parametrize("width", WIDTHS)
def test_each_value_by_itself(name: str, width: int, isa, threads):
    x = 20 * random(ROWS, 2 * width)[:, width:]
    got = getattr(ops, name)(x)
    close(got, getattr(activation, name)(x))
    alone = [getattr(ops, name)(value[None])[0] for value in x[0]]
    assert torch.equal(torch.stack(alone), got[0])


def test_streams_are_read_and_written(isa, threads):
    normalized, gate = random(ROWS, 4, 72), random(ROWS, 4 * 72)
    read = ops.read_streams(normalized, gate)
    close(read, read_streams(normalized, gate))
    output, inject = random(ROWS, 72), 5 * random(ROWS, 4)
    written = ops.write_streams(normalized, output, inject)
    close(written, write_streams(normalized, output, inject))
    for i in range(ROWS):
        row = slice(i, i + 1)
        assert torch.equal(ops.read_streams(normalized[row], gate[row])[0], read[i])
        assert torch.equal(ops.write_streams(normalized[row], output[row], inject[row])[0], written[i])
    shared = normalized[:, :1].expand(-1, 4, -1)  # as the first block gets them: one row for all streams
    assert torch.equal(
        ops.write_streams(shared, output, inject), ops.write_streams(shared.contiguous(), output, inject)
    )


@pytest.mark.parametrize(("num_experts", "num_used"), [(8, 2), (128, 8), (512, 10), (60, 60), (5, 1)])
@pytest.mark.parametrize("normalize", [False, True])
def test_route(num_experts: int, num_used: int, normalize: bool, isa, threads):
    logits = 3 * random(ROWS, num_experts)
    experts, weights = ops.route(logits, num_used, normalize)
    expected_experts, expected_weights = route(logits, num_used, normalize)
    assert torch.equal(experts, expected_experts)
    close(weights, expected_weights)
    for i in range(ROWS):
        row = ops.route(logits[i : i + 1], num_used, normalize)
        assert torch.equal(row[0][0], experts[i]) and torch.equal(row[1][0], weights[i])


def test_equal_experts_go_to_the_lowest_index(isa):
    logits = torch.zeros(3, 512)
    logits[1, 300] = logits[1, 100] = 5.0
    logits[2, 511] = 1e-3
    assert ops.route(logits, 4)[0].tolist() == [[0, 1, 2, 3], [100, 300, 0, 1], [511, 0, 1, 2]]


def test_every_instruction_set_gives_the_same_bits():
    x, weight, logits = random(ROWS, 576), random(576), random(ROWS, 128)
    q, k, v = random(ROWS, 6, 72), random(300, 2, 72), random(300, 2, 44)

    def results() -> list[torch.Tensor]:
        return [
            ops.rms_norm(x, weight, 1e-5),
            ops.swiglu(x, -x),
            *ops.route(logits, 8),
            ops.attend(q, k, v, 0.1, 200),
        ]

    first = results()
    for name in _core.isas():
        _core.use_isa(name)
        for got, want in zip(results(), first, strict=True):
            assert torch.equal(got, want), name
    _core.use_isa(_core.isas()[0])


def test_what_does_not_fit_is_refused():
    x = random(4, 8)
    with pytest.raises(TypeError):
        ops.rms_norm(x.double(), random(8), 1e-5)
    with pytest.raises(TypeError):  # its rows are columns
        ops.rms_norm(x.T, random(4), 1e-5)
    with pytest.raises(TypeError):
        ops.swiglu(x.numpy(), x)
    with pytest.raises(ValueError, match="weight does not fit"):
        ops.rms_norm(x, random(9), 1e-5)
    with pytest.raises(ValueError, match="up has another shape"):
        ops.swiglu(x, random(4, 9))
    with pytest.raises(ValueError, match=r"cos has shape \[3, 4\], expected \[4, 4\]"):
        ops.rotate(x[:, None], random(3, 4), random(3, 4))
    with pytest.raises(ValueError, match="cos turns more values"):
        ops.rotate(x[:, None], random(4, 5), random(4, 5))
    with pytest.raises(ValueError, match="at least num_used experts"):
        ops.route(x, 9)


def test_results_outlive_what_they_were_made_of():
    results = [ops.rms_norm(torch.full((1, 16), 2.0**i), torch.ones(16), 0.0) for i in range(50)]
    assert all(torch.equal(y, torch.ones(1, 16)) for y in results)
    assert results[0].data_ptr() % 64 == 0 and results[0].is_contiguous()
    results[0] += 1  # an ordinary tensor
    assert torch.equal(results[1], torch.ones(1, 16))
