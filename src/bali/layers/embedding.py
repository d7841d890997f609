"""Embeddings as rows times a weight matrix: a token is a row with a single one in it.

XᵀX of such rows is diagonal, the number of times each token was seen, and so is its precision: memory and time
grow with the number of tokens and not with its square or cube.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from bali.conjugate.rows import Tokens
from bali.layers.layer import Layer, UnsupportedLayerError


class EmbeddingLayer(Layer):
    """`nn.Embedding` without `padding_idx` and `max_norm`; it has no bias."""

    has_bias = False
    has_tokens = True

    def __init__(self, name: str, module: nn.Embedding) -> None:
        if module.padding_idx is not None or module.max_norm is not None:
            raise UnsupportedLayerError(
                f"layer '{name}' (Embedding) has padding_idx or max_norm, which fix some of its weights by other means than "
                "a posterior. Leave them out, or name it in `exclude` to train it by an optimizer."
            )
        self.name = name
        self.module = self._module = module
        self.in_features, self.out_features = module.num_embeddings, module.embedding_dim

    def input_rows(self, x: Tensor) -> Tokens:
        return Tokens(x.reshape(-1).long(), self.in_features, self.weight.dtype)

    def output_rows(self, z: Tensor) -> Tensor:
        return z.reshape(-1, self.out_features)

    def from_rows(self, rows: Tensor, like: Tensor) -> Tensor:
        return rows.reshape(like.shape)

    def gradient_matrix(self, gradients: Sequence[Tensor]) -> Tensor:
        (found,) = gradients
        return found.to_dense() if found.is_sparse else found

    def weights(self) -> Tensor:
        return self._module.weight.detach().clone()

    @torch.no_grad()
    def assign(self, weights: Tensor) -> None:
        self._module.weight.copy_(weights)
