"""What users hand in to `bali.fit`: each works, or gets an error that says what to do."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

import bali
from support.networks import seeded

QUIET: dict[str, Any] = {"verbose": False, "seed": 0, "epochs": 2}


@dataclass
class Output:
    """As Hugging Face models return it."""

    logits: Tensor
    loss: Tensor | None = None


class TextModel(nn.Module):
    """Takes tokens and a mask of those that count, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.norm, self.classifier = nn.Embedding(9, 8), nn.LayerNorm(8), nn.Linear(8, 2)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Output:
        counted = attention_mask.unsqueeze(-1).to(self.norm.weight.dtype)
        mean = (self.embedding(input_ids) * counted).sum(1) / counted.sum(1)
        return Output(self.classifier(self.norm(mean)))


class Texts(Dataset[dict[str, Tensor]]):
    """Items are mappings with labels."""

    def __init__(self, n: int = 60) -> None:
        self.tokens = torch.randint(9, (n, 6), generator=seeded(0))
        self.mask = (torch.arange(6) < torch.randint(2, 7, (n, 1), generator=seeded(1))).long()

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, i: int) -> dict[str, Tensor]:
        label = (self.tokens[i, 0] > 4).long()
        return {"input_ids": self.tokens[i], "attention_mask": self.mask[i], "labels": label}


def rows(n: int = 60) -> tuple[Tensor, Tensor]:
    x = torch.randn(n, 3, generator=seeded(0))
    return x, (x[:, 0] > 0).long()


def mlp(d_out: int = 2) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, d_out))


@pytest.mark.parametrize("is_loader", [False, True])
def test_batches_of_mappings_with_masks(is_loader: bool) -> None:
    torch.manual_seed(0)
    texts = Texts()
    data: Any = DataLoader(texts, batch_size=20) if is_loader else texts
    fitted = bali.fit(TextModel(), data, bali.likelihoods.Categorical(), **QUIET)
    new = {"input_ids": texts.tokens[:5], "attention_mask": texts.mask[:5]}
    assert fitted.predict(new).mean.shape == (5, 2)
    other = new | {"attention_mask": torch.ones_like(texts.mask[:5])}
    assert not torch.equal(fitted.predict(other).mean, fitted.predict(new).mean)


@pytest.mark.parametrize("is_regression", [False, True])
def test_inside_autocast_and_inference_mode(is_regression: bool) -> None:
    x, y = rows()
    target, likelihood = (x[:, 0], nn.MSELoss()) if is_regression else (y, nn.CrossEntropyLoss())
    net = mlp(1 if is_regression else 2)
    plain = bali.fit(net, (x, target), likelihood, **QUIET)
    expected = plain.predict(x).mean
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(plain.predict(x).mean, expected)  # predictions are as exact as the module
        cast = bali.fit(net, (x, target), likelihood, **QUIET)
    torch.testing.assert_close(cast.predict(x).mean, expected, rtol=0.1, atol=0.1)
    with torch.inference_mode():
        inside = plain.predict(x.clone()).mean
        trained = bali.fit(net, (x.clone(), target.clone()), likelihood, **QUIET)
    assert torch.equal(inside, expected)
    assert torch.equal(trained.predict(x).mean, expected)


def test_gradients_are_the_callers_affair() -> None:
    """Chunks of predictions leave the caller's modes alone."""
    fitted = bali.fit(mlp(), rows(), bali.likelihoods.Categorical(), **QUIET)
    for _ in fitted.predict_chunks(rows()[0]):
        assert torch.is_grad_enabled()


def test_a_float64_module() -> None:
    x, y = rows()
    fitted = bali.fit(mlp(1).double(), (x.numpy().astype(np.float32), y.numpy()), bali.likelihoods.Bernoulli(), **QUIET)
    assert fitted.predict(x).mean.dtype == torch.float64
    assert next(fitted.module.parameters()).dtype == torch.float64


def test_arrays_lists_and_one_dimensional_targets() -> None:
    x, _ = rows()
    fitted = bali.fit(mlp(1), (x.numpy(), (2.0 + x[:, 0]).tolist()), nn.MSELoss(), **QUIET)
    predicted = fitted.predict(x[:4].tolist())
    assert predicted.mean.shape == (4, 1)
    assert predicted.log_prob(torch.zeros(4)).shape == (4,)


class Stream(IterableDataset[tuple[Tensor, Tensor]]):
    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return iter([(torch.zeros(3), torch.tensor(0))])


@pytest.mark.parametrize("wrap", [lambda stream: stream, DataLoader])
def test_streams_are_refused(wrap: Any) -> None:
    with pytest.raises(TypeError, match="map-style Dataset"):
        bali.fit(mlp(), wrap(Stream()), bali.likelihoods.Categorical(), **QUIET)


@pytest.mark.parametrize("last", [nn.Softmax(-1), nn.LogSoftmax(-1), nn.Sigmoid()], ids=["softmax", "log", "sigmoid"])
def test_what_the_likelihood_has_already(last: nn.Module) -> None:
    """A softmax or sigmoid at the end is refused; a log-softmax does no harm, as softmax leaves it as it is."""
    x, y = rows()
    binary = isinstance(last, nn.Sigmoid)
    likelihood = bali.likelihoods.Bernoulli() if binary else bali.likelihoods.Categorical()
    net = nn.Sequential(mlp(1 if binary else 2), last)
    if isinstance(last, nn.LogSoftmax):
        assert bali.fit(net, (x, y), likelihood, **QUIET).predict(x).mean.shape == (60, 2)
        return
    with pytest.raises(ValueError, match="remove it"):
        bali.fit(net, (x, y), likelihood, **QUIET)


@pytest.mark.parametrize(
    "likelihood",
    [bali.likelihoods.Categorical, bali.likelihoods.Categorical(), nn.CrossEntropyLoss(), nn.CrossEntropyLoss],
    ids=["class", "object", "loss", "class of losses"],
)
def test_likelihoods_as_users_give_them(likelihood: Any) -> None:
    fitted = bali.fit(mlp(), rows(), likelihood, **QUIET)
    assert isinstance(fitted.likelihood, bali.likelihoods.Categorical)


def test_nan_in_new_rows() -> None:
    x, y = rows()
    fitted = bali.fit(mlp(), (x, y), bali.likelihoods.Categorical(), **QUIET)
    x[3, 1] = float("nan")
    with pytest.raises(ValueError, match=r"NaN or infinite values, first in rows \[3\]"):
        fitted.predict(x)
    with pytest.raises(ValueError, match=r"NaN or infinite values, first in rows \[3\]"):
        fitted.predict(x.requires_grad_())


def test_a_pickled_fit_goes_to_another_process() -> None:
    x, _ = rows()
    fitted = bali.fit(mlp(1), (x, 7.0 + x[:, 0]), bali.likelihoods.Gaussian, **QUIET)
    again = pickle.loads(pickle.dumps(fitted))
    assert torch.equal(again.predict(x).std, fitted.predict(x).std)
    assert repr(again) == repr(fitted)


@pytest.mark.parametrize("n", [2, 3, 5])
def test_very_few_examples(n: int) -> None:
    x, _ = rows(n)
    fitted = bali.fit(mlp(1), (x, x[:, 0]), bali.likelihoods.Gaussian(), **QUIET)
    assert bool(torch.isfinite(fitted.predict(x).std).all())


@pytest.mark.parametrize("whole", [False, True])
def test_large_targets_about_zero_are_not_taken_for_answers(whole: bool) -> None:
    """An untrained module's outputs are near their mean, which is no answer in their units."""
    x = torch.randn(200, 3, generator=seeded(0))
    y = 1000.0 * x.sum(1)
    y = y - y.mean()
    fitted = bali.fit(mlp(1), (x, y.long() if whole else y), bali.likelihoods.Gaussian(), **QUIET | {"epochs": 20})
    assert fitted.units is not None
    assert not fitted.units.module_has_them
    error = fitted.predict(x).mean[:, 0] - y
    assert error.square().mean() < 0.2 * y.square().mean()


def test_an_image_for_each_image(tmp_path: Any) -> None:
    torch.manual_seed(0)
    x = torch.randn(60, 1, 5, 5, generator=seeded(0))
    y = torch.cat([100.0 + x, 0.01 * x.relu()], 1)  # (60, 2, 5, 5): two channels of very different sizes
    network = nn.Sequential(nn.Conv2d(1, 8, 1), nn.ReLU(), nn.Conv2d(8, 2, 1))
    fitted = bali.fit(network, (x, y), nn.MSELoss(), **QUIET | {"epochs": 80})
    predicted = fitted.predict(x[:4])
    assert predicted.mean.shape == (4 * 25, 2)  # a row for each position
    as_images = predicted.mean.reshape(4, 5, 5, 2).movedim(-1, 1)
    assert torch.allclose(as_images, fitted.module(x[:4]), rtol=1e-4, atol=1e-4)
    for channel in (0, 1):
        error, spread = (as_images - y[:4])[:, channel], y[:, channel].std()
        assert error.square().mean() < 0.3 * spread**2
    fitted.save(tmp_path / "image.bali")
    again = bali.load(tmp_path / "image.bali", module=network)
    assert torch.equal(again.predict(x[:4]).mean, predicted.mean)


@pytest.mark.parametrize("has_channel", [False, True])
def test_masks_of_images(has_channel: bool) -> None:
    torch.manual_seed(0)
    x = torch.randn(60, 1, 5, 5, generator=seeded(0))
    mask = (x > 0).float()
    network = nn.Sequential(nn.Conv2d(1, 4, 1), nn.ReLU(), nn.Conv2d(4, 1, 1))
    data = x, mask if has_channel else mask[:, 0]
    fitted = bali.fit(network, data, nn.BCEWithLogitsLoss(), **QUIET | {"epochs": 30})
    right = fitted.predict(x).probabilities[:, 1].gt(0.5) == mask.bool().reshape(-1)  # type: ignore[attr-defined]
    assert right.float().mean() > 0.9


def test_inputs_of_another_size_are_told() -> None:
    x, y = rows()
    large = 40.0 * x + torch.tensor([0.0, 40.0, 0.0])
    with pytest.warns(bali.HealthWarning, match=r"column 1 of x \(from 0\) has values of about "):
        bali.fit(mlp(), (large, y), bali.likelihoods.Categorical(), **QUIET)


def test_log_probabilities() -> None:
    x, y = rows()
    network = nn.Sequential(*mlp(), nn.LogSoftmax(-1))
    logits = bali.fit(mlp(), (x, y), nn.CrossEntropyLoss(), **QUIET).predict(x)
    logarithms = bali.fit(network, (x, y), nn.NLLLoss(), **QUIET).predict(x)
    assert torch.allclose(logits.mean, logarithms.mean, atol=1e-4)
