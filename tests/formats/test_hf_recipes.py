"""Recipes: whatever is asked for, a slice or some rows equal the same of the whole."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from strata.errors import ModelFileError
from strata.formats.hf_recipes import Concat, Map, Part, Plain, Reader, Recipe, Stack, Values

A, B = torch.arange(24.0).view(4, 6), torch.arange(100.0, 124.0).view(4, 6)
C = torch.arange(48.0).view(2, 4, 6)


@pytest.fixture
def reader(tmp_path: Path) -> Reader:
    save_file({"a": A, "b": B, "c": C}, tmp_path / "model.safetensors")
    return Reader(tmp_path, [tmp_path / "model.safetensors"])


RECIPES: dict[str, tuple[Callable[[Reader], Recipe], torch.Tensor]] = {
    "plain": (lambda r: Plain(r, "a"), A),
    "values": (lambda r: Values(A[0].double()), A[0]),
    "map": (lambda r: Map(Plain(r, "a"), lambda a: 1 + a), 1 + A),
    "map to another shape": (lambda r: Map(Plain(r, "a"), lambda a: a[None], (1, 4, 6)), A[None]),
    "stack": (lambda r: Stack([Plain(r, "a"), Plain(r, "b")]), torch.stack([A, B])),
    "first rows": (lambda r: Part(Plain(r, "a"), 0, 0, 2), A[:2]),
    "last rows": (lambda r: Part(Plain(r, "a"), 0, 1, 4), A[1:]),
    "columns": (lambda r: Part(Plain(r, "a"), 1, 2, 5), A[:, 2:5]),
    "rows of each slice": (lambda r: Part(Plain(r, "c"), 1, 2, 4), C[:, 2:]),
    "rows of a stack": (
        lambda r: Part(Stack([Plain(r, "a"), Plain(r, "b")]), 1, 1, 3),
        torch.stack([A, B])[:, 1:3],
    ),
    "shards": (
        lambda r: Concat([Plain(r, "a"), Part(Plain(r, "b"), 0, 0, 1), Plain(r, "a")]),
        torch.cat([A, B[:1], A]),
    ),
    "side by side": (lambda r: Concat([Plain(r, "a"), Plain(r, "b")], 1), torch.cat([A, B], 1)),
}


@pytest.mark.parametrize("case", RECIPES)
def test_parts_equal_those_of_the_whole(case: str, reader: Reader):
    make, expected = RECIPES[case]
    recipe = make(reader)
    assert recipe.shape == tuple(expected.shape)
    assert recipe.num_bytes == 4 * expected.numel()
    assert recipe.read().dtype == torch.float32 and torch.equal(recipe.read(), expected)
    for index in range(len(expected)):
        assert torch.equal(recipe.read_slice(index), expected[index])
    rows = torch.tensor([len(expected) - 1, 0, 0])
    assert torch.equal(recipe.read_rows(rows), expected[rows])


def test_tensors_that_do_not_fit_are_refused(reader: Reader):
    with pytest.raises(ModelFileError, match=r"\[4, 6\] and \[2, 4, 6\] cannot be stacked"):
        Stack([Plain(reader, "a"), Plain(reader, "c")])
    with pytest.raises(ModelFileError, match=r"\[4, 6\] and \[3, 5\] cannot be joined"):
        Concat([Plain(reader, "a"), Map(Plain(reader, "b"), lambda b: b[:3, :5], (3, 5))])
    with pytest.raises(ModelFileError, match=r"\[4, 6\] has no rows 3 to 5"):
        Part(Plain(reader, "a"), 0, 3, 5)


def test_what_nobody_asked_for_is_unused(reader: Reader):
    Plain(reader, "b")
    assert reader.unused() == ["a", "c"]
    reader.ignore("c")
    assert reader.unused() == ["a"]
