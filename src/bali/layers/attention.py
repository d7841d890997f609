"""`nn.MultiheadAttention` with a posterior for each of its four projections.

The queries', keys' and values' projections lie in one parameter, and torch never calls the output projection as a module.
Here they are four linear maps with scaled dot-product attention between the third and the fourth; inputs are put in the
order (n, positions, features) first, so that rows of one example are neighbours.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from bali.layers.layer import Composite
from bali.layers.packed import PackedLinear, trainable_layers


class Attention(Composite):
    """All options of the module are kept; `bias_k` and `bias_v` (`add_bias_kv`) are no weight matrices."""

    def __init__(self, name: str, module: nn.MultiheadAttention) -> None:
        self.module = self._module = module
        is_packed = module.in_proj_weight is not None  # with `kdim` or `vdim`, only the biases are
        biases = [] if module.in_proj_bias is None else ["in_proj_bias"]
        self.maps: dict[str, PackedLinear] = {}
        for i, part in enumerate("qkv"):
            rows = slice(i * module.embed_dim, (i + 1) * module.embed_dim)
            weight = "in_proj_weight" if is_packed else f"{part}_proj_weight"
            self.maps[part] = PackedLinear(module, [weight], biases, rows if is_packed else slice(None), rows)
        self.layers = trainable_layers(name, self.maps, self)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        if is_causal and attn_mask is None:
            raise ValueError("is_causal is a hint about attn_mask, which is needed with it")
        module = self._module
        with_batch = query.dim() == 3
        q, k, v = (
            self._heads(self.maps[part](self._batch_first(x, with_batch)))
            for part, x in zip("qkv", (query, key, value), strict=True)
        )
        mask = self._mask(attn_mask, key_padding_mask, q, k)
        k, v, mask = self._extended(k, v, mask)
        dropout = module.dropout if module.training else 0.0
        weights = None
        if need_weights:
            scores = q * math.sqrt(1.0 / module.head_dim) @ k.mT
            weights = torch.softmax(scores if mask is None else scores + mask, dim=-1)
            weights = functional.dropout(weights, dropout) if dropout else weights
            mixed = weights @ v
            weights = weights.mean(1) if average_attn_weights else weights
            weights = weights if with_batch else weights.squeeze(0)
        else:
            mixed = functional.scaled_dot_product_attention(q, k, v, mask, dropout)
        output = module.out_proj(mixed.transpose(1, 2).flatten(2))  # (n, positions, features)
        if not with_batch:
            return output.squeeze(0), weights
        return output if module.batch_first else output.transpose(0, 1), weights

    def _batch_first(self, x: Tensor, with_batch: bool) -> Tensor:
        if not with_batch:
            return x.unsqueeze(0)
        return x if self._module.batch_first else x.transpose(0, 1)

    def _heads(self, x: Tensor) -> Tensor:
        """(n, positions, features) to (n, heads, positions, features of a head)."""
        return x.reshape(*x.shape[:-1], self._module.num_heads, -1).transpose(1, 2)

    def _mask(self, attn_mask: Tensor | None, key_padding_mask: Tensor | None, q: Tensor, k: Tensor) -> Tensor | None:
        """What is added to the scores, so that it broadcasts with (n, heads, positions, keys)."""
        n, heads, length, keys = *q.shape[:3], k.shape[2]
        added = []
        if attn_mask is not None:
            if attn_mask.shape not in ((length, keys), (n * heads, length, keys)):
                raise ValueError(
                    f"attn_mask must have shape {(length, keys)} or {(n * heads, length, keys)}, got "
                    f"{tuple(attn_mask.shape)}"
                )
            added.append(attn_mask if attn_mask.dim() == 2 else attn_mask.reshape(n, heads, length, keys))
        if key_padding_mask is not None:
            if key_padding_mask.numel() != n * keys:
                raise ValueError(f"key_padding_mask must have shape {(n, keys)}, got {tuple(key_padding_mask.shape)}")
            added.append(key_padding_mask.reshape(n, 1, 1, keys))
        numbers = [_as_numbers(mask, q) for mask in added]
        return None if not numbers else numbers[0] if len(numbers) == 1 else numbers[0] + numbers[1]

    def _extended(self, k: Tensor, v: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
        """With the keys and values that stand beside the inputs', which no mask hides."""
        module = self._module
        beside: list[tuple[Tensor, Tensor]] = []
        if module.bias_k is not None and module.bias_v is not None:
            beside.append((self._heads(module.bias_k), self._heads(module.bias_v)))
        if module.add_zero_attn:
            zero = k.new_zeros(1, module.num_heads, 1, module.head_dim)
            beside.append((zero, zero))
        for more_k, more_v in beside:
            k = torch.cat([k, more_k.expand(len(k), -1, -1, -1)], dim=2)
            v = torch.cat([v, more_v.expand(len(v), -1, -1, -1)], dim=2)
            mask = None if mask is None else functional.pad(mask, (0, 1))
        return k, v, mask


def _as_numbers(mask: Tensor, like: Tensor) -> Tensor:
    """Booleans say what is hidden."""
    if mask.is_floating_point():
        return mask.to(like.dtype)
    if mask.dtype != torch.bool:
        raise ValueError(f"masks must be booleans or floating-point numbers, got {mask.dtype}")
    return torch.zeros_like(mask, dtype=like.dtype).masked_fill_(mask, -math.inf)
