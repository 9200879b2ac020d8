"""The router's choice, by hand."""

import torch

from strata.ops.router import route


def test_most_probable_first_and_renormalised():
    logits = torch.tensor([[0.0, 2.0, 1.0, -1.0]])
    experts, weights = route(logits, 2)
    assert experts.tolist() == [[1, 2]]
    torch.testing.assert_close(weights, torch.tensor([[2.0, 1.0]]).softmax(-1))  # Mixtral's way to say it
    plain = route(logits, 2, normalize=False)[1]
    torch.testing.assert_close(plain, logits.softmax(-1)[:, [1, 2]])


def test_equal_experts_go_to_the_lowest_index():
    logits = torch.zeros(3, 512)
    logits[1, 300] = logits[1, 100] = 5.0
    logits[2, 511] = 1e-3
    experts, weights = route(logits, 4)
    assert experts.tolist() == [[0, 1, 2, 3], [100, 300, 0, 1], [511, 0, 1, 2]]
    torch.testing.assert_close(weights.sum(-1), torch.ones(3))
