"""Products of patches that are never written out: against the patches written out."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from bali.conjugate.moments import cross, input_gram, products
from bali.conjugate.rows import Patches
from bali.layers.convolution import ConvolutionLayer
from bali.layers.layer import Layer
from support.networks import inference, randn, seeded
from support.oracles import assert_close
from support.posteriors import assert_same_posteriors
from support.tolerances import MANY_STEPS


@st.composite
def patches(draw: st.DrawFn) -> tuple[Patches, Tensor]:
    """Patches of small images, and the same rows written out by the layer's own way."""
    kernel, stride, dilation = (draw(st.tuples(st.integers(1, 3), st.integers(1, 3))) for _ in range(3))
    reach = [d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=True)]
    height, width = (least + draw(st.integers(0, 4)) for least in reach)
    images = randn(draw(st.integers(1, 3)), draw(st.integers(1, 2)), height, width, seed=draw(st.integers(0, 99)))
    module = nn.Conv2d(images.shape[1], 1, kernel, stride=stride, dilation=dilation).double()
    return Patches(images, kernel, stride, dilation), ConvolutionLayer("conv", module).input_rows(images)


@given(case=patches(), bias=st.booleans(), weighted=st.booleans(), out=st.integers(1, 3))
@settings(max_examples=150, deadline=None)
def test_products_are_those_of_the_rows(case: tuple[Patches, Tensor], bias: bool, weighted: bool, out: int) -> None:
    compact, rows = case
    assert compact.shape == rows.shape
    y, n = randn(len(rows), out, seed=1), len(compact.images)
    root = torch.rand(n, generator=seeded(2)).double().repeat_interleave(len(rows) // n) if weighted else None
    assert_close(input_gram(compact, bias=bias, root=root), input_gram(rows, bias=bias, root=root))
    assert_close(cross(compact, y, bias=bias, root=root), cross(rows, y, bias=bias, root=root))
    (xx, xy), (other_xx, other_xy) = (products(x, y, bias=bias, root=root) for x in (compact, rows))
    assert_close(xx, other_xx)
    assert_close(xy, other_xy)


def test_the_gram_matrix_is_exactly_symmetric_where_it_is_mirrored() -> None:
    xx = Patches(randn(4, 2, 7, 7, seed=3), (3, 3), (1, 1), (1, 1)).input_gram(bias=True, root=None)
    assert_close(xx.values, xx.values.T)


def test_images_that_lie_otherwise_in_memory_give_the_same() -> None:
    images = randn(4, 3, 6, 5, seed=4)
    plain, last = (
        Patches(x, (2, 3), (1, 1), (1, 1)) for x in (images, images.contiguous(memory_format=torch.channels_last))
    )
    y = randn(plain.shape[0], 2, seed=5)
    (xx, xy), (other_xx, other_xy) = (products(x, y, bias=True, root=None) for x in (plain, last))
    assert torch.equal(xx.dense(), other_xx.dense())
    assert torch.equal(xy, other_xy)


def test_only_large_kernels_on_small_images_are_not_written_out() -> None:
    def kind(module: nn.Conv2d, size: int) -> type:
        return type(ConvolutionLayer("conv", module).rows_for_products(torch.zeros(2, module.in_channels, size, size)))

    assert kind(nn.Conv2d(1, 6, 5), 28) is Patches
    assert kind(nn.Conv2d(6, 16, 5), 12) is Patches
    assert kind(nn.Conv2d(16, 16, 1), 12) is Tensor
    assert kind(nn.Conv2d(16, 16, 3), 64) is Tensor
    assert kind(nn.Conv2d(4, 4, 5, groups=2), 12) is Tensor


NETWORKS: dict[str, tuple[nn.Module, Tensor]] = {
    "images": (
        nn.Sequential(nn.Conv2d(1, 3, 4, padding="same"), nn.ReLU(), nn.Conv2d(3, 2, 4), nn.Flatten(), nn.Linear(50, 2)),
        randn(12, 1, 8, 8, seed=6),
    ),
    "sequences": (
        nn.Sequential(nn.Conv1d(2, 3, 4, padding=1, stride=2), nn.Tanh(), nn.Flatten(), nn.Linear(12, 2)),
        randn(12, 2, 8, seed=7),
    ),
}


@pytest.mark.parametrize("kind", NETWORKS)
@pytest.mark.parametrize("options", [{}, {"reparam": "local"}, {"target_noise": False}], ids=str)
@pytest.mark.parametrize("weighted", [False, True], ids=["", "weighted"])
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths:UserWarning")
def test_posteriors_are_those_of_rows_written_out(
    kind: str, options: dict[str, Any], weighted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, x = NETWORKS[kind]
    y = torch.arange(len(x)) % 2
    weight = torch.rand(len(x), generator=seeded(8)).double() if weighted else None
    start = {name: value.clone().double() for name, value in module.state_dict().items()}
    runs = []
    for written_out in (False, True):
        module.double().load_state_dict(start)
        run = inference(module, "categorical", 50, **options)
        kinds = {type(run.setup.network.layers[name].rows_for_products(part)) for name, part in (("0", x),)}
        assert kinds == {Tensor if written_out else Patches}
        for _ in range(14):
            run.step(x, y, sample_weight=weight)
        runs.append(run)
        monkeypatch.setattr(ConvolutionLayer, "rows_for_products", Layer.rows_for_products)
    assert_same_posteriors(*runs, tolerance=MANY_STEPS)
