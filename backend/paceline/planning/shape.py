"""The shape of a decoder-only transformer, and what follows from it: parameters, bytes, work.

Only sizes. Nothing here reads weights or knows a device. A shape comes from a `config.json`,
from plain numbers, from the table of known models, or from a target whose draft head it is;
see `paceline.planning.sources`.
"""

from __future__ import annotations

from dataclasses import dataclass

from paceline.core.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """Sizes of one model.

    `num_experts` 0 means a dense feed-forward everywhere; with experts, the first
    `num_dense_layers` layers still have a dense one of `dense_intermediate_size`.
    `output_vocab_size` is how many rows of the output head are computed: a draft with a trimmed
    vocabulary computes few and still embeds all. `attention_input_width` is in units of
    `hidden_size`: 2 for a feature head that reads a token embedding and a target feature side
    by side.
    """

    name: str
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    tied_embeddings: bool = False
    gated_mlp: bool = True
    qkv_bias: bool = False
    qk_norm: bool = False
    num_experts: int = 0
    experts_per_token: int = 0
    shared_expert_size: int = 0
    num_dense_layers: int = 0
    dense_intermediate_size: int = 0
    sliding_window: int = 0
    num_sliding_layers: int = 0
    output_vocab_size: int | None = None
    attention_input_width: int = 1
    fusion_params: int = 0
    shares_embedding: bool = False

    def __post_init__(self) -> None:
        for field in ("num_layers", "hidden_size", "num_heads", "num_kv_heads", "head_dim"):
            if getattr(self, field) < 1:
                raise ConfigError(f"{self.name}: {field} must be at least 1", field=field)
        if self.num_heads % self.num_kv_heads:
            raise ConfigError(
                f"{self.name}: num_heads {self.num_heads} is no multiple of "
                f"num_kv_heads {self.num_kv_heads}",
                field="num_kv_heads",
            )
        if self.num_experts and not 1 <= self.experts_per_token <= self.num_experts:
            raise ConfigError(
                f"{self.name}: experts_per_token must lie between 1 and {self.num_experts}",
                field="experts_per_token",
            )

    # ------------------------------------------------------------------ parameters

    @property
    def attention_params(self) -> int:
        """Attention of one layer: four projections, their biases, the norms of Q and K."""
        query_width = self.num_heads * self.head_dim
        kv_width = self.num_kv_heads * self.head_dim
        inputs = self.hidden_size * self.attention_input_width
        params = inputs * (query_width + 2 * kv_width) + query_width * self.hidden_size
        if self.qkv_bias:
            params += query_width + 2 * kv_width
        if self.qk_norm:
            params += 2 * self.head_dim
        return params

    def _feed_forward_params(self, width: int) -> int:
        return (3 if self.gated_mlp else 2) * self.hidden_size * width

    @property
    def expert_params(self) -> int:
        """One feed-forward: of the layer if dense, of one expert if not."""
        return self._feed_forward_params(self.intermediate_size)

    @property
    def num_expert_layers(self) -> int:
        """Layers whose feed-forward is a choice of experts."""
        return self.num_layers - self.num_dense_layers if self.num_experts else 0

    @property
    def always_on_params(self) -> int:
        """Parameters of all layers that every token uses: all but routed experts."""
        params = self.num_layers * (self.attention_params + 2 * self.hidden_size)
        params += self.hidden_size + self.fusion_params  # the last norm
        if not self.num_experts:
            return params + self.num_layers * self.expert_params
        router = self.num_experts * self.hidden_size
        shared = self._feed_forward_params(self.shared_expert_size)
        dense = self._feed_forward_params(self.dense_intermediate_size)
        return params + self.num_expert_layers * (router + shared) + self.num_dense_layers * dense

    @property
    def routed_params(self) -> int:
        """All routed experts of all layers, used or not."""
        return self.num_expert_layers * self.num_experts * self.expert_params

    @property
    def embedding_params(self) -> int:
        """The token embedding, once, whether or not the output head shares it."""
        return self.vocab_size * self.hidden_size

    @property
    def head_params(self) -> int:
        """The rows of the output head that are computed for every token."""
        return (self.output_vocab_size or self.vocab_size) * self.hidden_size

    @property
    def has_own_head(self) -> bool:
        """True if the head's rows are stored beside the embedding: untied, or a trimmed copy."""
        return not self.tied_embeddings or self.output_vocab_size is not None

    @property
    def total_params(self) -> int:
        """Parameters stored."""
        params = self.always_on_params + self.routed_params
        if not self.shares_embedding:
            params += self.embedding_params
        return params + (self.head_params if self.has_own_head else 0)

    @property
    def active_params(self) -> int:
        """Parameters that one token multiplies with: no embedding table, chosen experts only."""
        routed = self.num_expert_layers * self.experts_per_token * self.expert_params
        return self.always_on_params + routed + self.head_params

    # ------------------------------------------------------------------ what a step touches

    def touched_experts(self, rows: int) -> float:
        """Distinct experts of one layer that a step of `rows` tokens reads, on average.

        `E (1 - (1 - k/E)**rows)` for k of E experts chosen evenly and independently. This is
        why verification is dearer with experts: one token reads k of them, and the tokens that
        are verified with it mostly read others. Real routing favours some experts and
        neighbouring tokens agree more, so this is an upper bound.
        """
        if not self.num_experts:
            return 0.0
        missed = 1.0 - self.experts_per_token / self.num_experts
        return float(self.num_experts * (1.0 - missed**rows))

    def kv_elements_per_token(self) -> int:
        """Keys and values of one token over all layers, in elements."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim

    def attended_tokens(self, context: int) -> float:
        """Tokens that attention reads, averaged over layers: sliding layers read a window."""
        if not self.num_sliding_layers:
            return float(context)
        window = min(context, self.sliding_window)
        full = self.num_layers - self.num_sliding_layers
        return (full * context + self.num_sliding_layers * window) / self.num_layers

    def attention_flops(self, rows: int, context: int) -> float:
        """Floating-point operations of QK and PV for `rows` tokens at `context`, all layers."""
        per_row = 4.0 * self.num_layers * self.num_heads * self.head_dim
        return per_row * rows * self.attended_tokens(context)


def one_layer_head(target: ModelShape, draft_vocab_size: int) -> ModelShape:
    """An EAGLE-3 style draft head for `target` (arXiv 2503.01840).

    Three target features are fused to one (3 h x h), one decoder layer reads it beside the
    token's embedding (attention inputs are 2 h wide), and a head of its own covers the
    `draft_vocab_size` most frequent tokens. The embedding is the target's.
    """
    if not 1 <= draft_vocab_size <= target.vocab_size:
        raise ConfigError(
            f"a draft head's vocabulary must hold 1 to {target.vocab_size} tokens, "
            f"got {draft_vocab_size}",
            field="draft",
        )
    intermediate = target.intermediate_size
    if target.num_experts:  # heads are dense: give them what a token's experts have together
        intermediate *= target.experts_per_token
    return ModelShape(
        name=f"one-layer head ({draft_vocab_size} tokens)",
        num_layers=1,
        hidden_size=target.hidden_size,
        num_heads=target.num_heads,
        num_kv_heads=target.num_kv_heads,
        head_dim=target.head_dim,
        intermediate_size=intermediate,
        vocab_size=target.vocab_size,
        gated_mlp=target.gated_mlp,
        output_vocab_size=draft_vocab_size,
        attention_input_width=2,
        fusion_params=3 * target.hidden_size * target.hidden_size,
        shares_embedding=True,
    )
