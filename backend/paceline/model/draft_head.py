"""Draft modules that borrow from their target: a head on its hidden states, or a small decoder.

The *head* (after EAGLE-3, arXiv 2503.01840) proposes the token after position ``i`` from the
target's features of position ``i - 1`` (a few hidden states, computed when the target verified that
position) and the id of the token at position ``i``, which the target has not processed yet. The
*decoder* has no features and sees token ids alone; it is the same module with ``feature_layers=()``
and usually more layers. Both borrow the target's embedding, have K/V rows of their own, one per
layer and position, and an output over a trimmed vocabulary.

How to drive it
---------------
Rows. Row ``i`` belongs to the token at position ``i``, and its rotary position is ``i``. Its input
is ``embed(token id at position i)`` plus

* ``condition(features of position i - 1)`` where the target's features are known, or
* ``recur(hidden row i - 1 of the module itself)`` where they are not (row ``i - 1`` is known, but
  the target has not processed position ``i - 1``: it is drafted, or the token before a draft),
* nothing for row 0 of a head, and for every row of a decoder.

Catching up. With ``n`` committed tokens (the last one not yet processed by the target) the target's
features of positions ``0 .. n - 2`` are known, so rows ``0 .. n - 1`` are *true* rows: they can be
computed in one pass, or in chunks, and their K/V stays valid for ever. (Where features were lost, a
row without them costs acceptance, nothing else.) The hidden row ``n - 1``
gives, through :meth:`DraftModule.logits`, the distribution of the first drafted token.

Drafting. For each drafted token ``x`` at position ``n, n + 1, ...`` that is to be followed by
another, one *drafted* row is computed from ``recur(hidden of the row before)`` and ``embed(x)``;
its K/V is appended behind the true rows.

After verification every drafted K/V row is dropped, however many tokens were accepted (a counter
is set back, nothing is copied): with ``a`` accepted, the rows of the accepted tokens are computed
again from the target's true features, together with the row of the newly sampled token, in one pass
of ``a + 1`` rows that also starts the next draft.

Output. Column ``j`` of the logits belongs to the target's token id ``output_ids[j]`` (ascending);
ids that are not listed have draft probability zero.

Attention is the caller's: :meth:`DraftModule.forward` calls ``attend(layer, query, key, value)``
once a layer, with rotary positions already applied; the caller stores ``key`` and ``value`` where
it keeps the cache and returns the attention's output. So the same module runs over paged K/V in the
engine and over unrolled training batches.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class DraftModuleConfig:
    """The module's shape. All sizes in elements.

    ``feature_layers`` are the target's decoder layers whose outputs are the features, in order; -1
    stands for the final norm (:class:`paceline.model.features.FeatureTap`). Empty for a decoder.
    """

    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    num_output_ids: int
    feature_layers: tuple[int, ...]
    num_layers: int = 1
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-5

    def __post_init__(self) -> None:
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_attention_heads ({self.num_attention_heads}) must be a multiple of "
                f"num_key_value_heads ({self.num_key_value_heads})"
            )
        if self.num_layers < 1:
            raise ValueError(f"num_layers must be at least 1, not {self.num_layers}")
        if self.head_dim % 2:
            raise ValueError(f"head_dim must be even for rotary positions, not {self.head_dim}")

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> DraftModuleConfig:
        """The inverse of :meth:`to_dict`; an unknown or missing field raises ``TypeError``."""
        return cls(**{**values, "feature_layers": tuple(values["feature_layers"])})

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {**asdict(self), "feature_layers": list(self.feature_layers)}


class Attend(Protocol):
    """Attention over whatever cache the caller keeps.

    ``query [N, num_attention_heads, head_dim]``, ``key`` and ``value
    [N, num_key_value_heads, head_dim]``, all with rotary positions applied, scale
    ``head_dim ** -0.5``; returns ``[N, num_attention_heads, head_dim]``. Row ``i`` sees the valid
    rows before it and itself. ``layer`` counts from 0.
    """

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor: ...


def unit_rms(rows: Tensor, eps: float) -> Tensor:
    """Rows scaled to a root mean square of one: hidden states of different layers made alike."""
    return functional.rms_norm(rows, (rows.shape[-1],), None, eps)


def _linear(inputs: int, outputs: int) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=False)


class DraftLayer(nn.Module):
    """A pre-norm decoder layer with grouped-query attention and a gated feed-forward part."""

    def __init__(self, config: DraftModuleConfig, index: int) -> None:
        super().__init__()
        hidden, dim = config.hidden_size, config.head_dim
        query_size = config.num_attention_heads * dim
        key_size = config.num_key_value_heads * dim
        self._index = index
        self._head_dim = dim
        self._split = (query_size, key_size, key_size)
        self.attention_norm = nn.RMSNorm(hidden, eps=config.rms_norm_eps)
        self.query_key_value = _linear(hidden, sum(self._split))
        self.attention_output = _linear(query_size, hidden)
        self.feed_forward_norm = nn.RMSNorm(hidden, eps=config.rms_norm_eps)
        self.gate_up = _linear(hidden, 2 * config.intermediate_size)
        self.down = _linear(config.intermediate_size, hidden)

    def forward(self, rows: Tensor, cos: Tensor, sin: Tensor, attend: Attend) -> Tensor:
        """Rows ``[N, hidden_size]`` to rows; ``cos`` and ``sin`` as from :func:`_rotation`."""
        projected = self.query_key_value(self.attention_norm(rows))
        query, key, value = (
            part.unflatten(-1, (-1, self._head_dim)) for part in projected.split(self._split, -1)
        )
        query, key = _rotate(query, cos, sin), _rotate(key, cos, sin)
        attended = attend(self._index, query, key, value)
        rows = rows + self.attention_output(attended.flatten(-2))
        gate, up = self.gate_up(self.feed_forward_norm(rows)).chunk(2, dim=-1)
        return rows + self.down(functional.silu(gate) * up)  # type: ignore[no-any-return]


class DraftModule(nn.Module):
    """See the module's docstring for how rows, positions and the cache work together.

    ``embedding [vocabulary, hidden_size]`` is the target's own input embedding: borrowed, frozen,
    and not part of the state dict.
    """

    def __init__(self, config: DraftModuleConfig, embedding: Tensor) -> None:
        super().__init__()
        hidden = config.hidden_size
        if embedding.shape[1] != hidden:
            raise ValueError(
                f"the embedding has {embedding.shape[1]} columns, "
                f"the draft's hidden size is {hidden}"
            )
        self.config = config
        self._embedding = embedding.detach()
        self._token_table: Tensor | None = None
        if config.feature_layers:
            self.feature_projection = _linear(len(config.feature_layers) * hidden, hidden)
            self.recurrent_projection = _linear(hidden, hidden)
        self.token_projection = _linear(hidden, hidden)
        self.layers = nn.ModuleList(DraftLayer(config, i) for i in range(config.num_layers))
        self.output_norm = nn.RMSNorm(hidden, eps=config.rms_norm_eps)
        self.output = _linear(hidden, config.num_output_ids)
        exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32, device="cpu")
        self._frequencies = (config.rope_theta ** -(exponents / config.head_dim)).to(
            embedding.device
        )

    @property
    def borrowed_embedding(self) -> Tensor:
        """The target's embedding ``[vocabulary, hidden_size]``."""
        return self._embedding

    @property
    def token_table(self) -> Tensor | None:
        """What :meth:`fold_tokens` made: ``[vocabulary, hidden_size]``."""
        return self._token_table

    @property
    def rotary_frequencies(self) -> Tensor:
        """``[head_dim / 2]`` float32."""
        return self._frequencies

    @property
    def has_features(self) -> bool:
        """True for a head, False for a decoder."""
        return bool(self.config.feature_layers)

    def condition(self, features: Tensor) -> Tensor:
        """Target features ``[N, len(feature_layers), hidden_size]`` of the positions one before the
        rows, as input ``[N, hidden_size]``."""
        scaled = self._scaled(features, self.feature_projection)
        return self.feature_projection(scaled.flatten(-2))  # type: ignore[no-any-return]

    def recur(self, hidden: Tensor) -> Tensor:
        """The module's own hidden rows ``[N, hidden_size]`` in place of features, as input."""
        return self.recurrent_projection(  # type: ignore[no-any-return]
            self._scaled(hidden, self.recurrent_projection)
        )

    def embed(self, token_ids: Tensor) -> Tensor:
        """Token ids ``[N]`` as input ``[N, hidden_size]``."""
        if self._token_table is not None:
            return functional.embedding(token_ids, self._token_table)
        rows = functional.embedding(token_ids, self._embedding)
        return self.token_projection(  # type: ignore[no-any-return]
            self._scaled(rows, self.token_projection)
        )

    @torch.no_grad()
    def fold_tokens(self) -> None:
        """Precompute :meth:`embed` for the whole vocabulary (serving only): one matrix product less
        a row, for ``vocabulary * hidden_size`` elements of memory. Call after loading weights."""
        self._token_table = None
        every = torch.arange(len(self._embedding), device=self._embedding.device)
        self._token_table = torch.cat([self.embed(ids) for ids in torch.split(every, 4096)])

    def forward(self, inputs: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """Run the layers.

        ``inputs [N, hidden_size]`` (see the module's docstring), ``positions [N]`` integer. Returns
        hidden rows ``[N, hidden_size]``: feed them to :meth:`logits`, and to :meth:`recur` for the
        next row.
        """
        # Training keeps the residual stream in the weights' float32, even under autocast.
        rows = inputs.to(self.output_norm.weight.dtype)
        cos, sin = self._rotation(positions)
        for layer in self.layers:
            rows = layer(rows, cos, sin, attend)
        return rows

    def logits(self, hidden: Tensor) -> Tensor:
        """Hidden rows ``[N, hidden_size]`` to logits ``[N, num_output_ids]``."""
        return self.output(self.output_norm(hidden))  # type: ignore[no-any-return]

    def _scaled(self, rows: Tensor, consumer: nn.Linear) -> Tensor:
        return unit_rms(rows, self.config.rms_norm_eps).to(consumer.weight.dtype)

    def _rotation(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        angles = positions.to(torch.float32)[:, None] * self._frequencies
        angles = torch.cat((angles, angles), dim=-1)[:, None, :]
        return angles.cos(), angles.sin()


def _rotate(rows: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions, rotate-half layout: ``rows [N, heads, head_dim]``."""
    left, right = rows.chunk(2, dim=-1)
    turned = torch.cat((-right, left), dim=-1)
    return (rows * cos + turned * sin).to(rows.dtype)
