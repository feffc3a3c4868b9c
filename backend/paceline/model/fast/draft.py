"""A draft module in our kernels: drafting is many passes of one row, where calls cost more than
sums."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from paceline.model.attention_cpu import PagedAttention
from paceline.model.attention_native import NativeMemory, NativePagedAttention
from paceline.model.draft_head import DraftLayer, DraftModule
from paceline.model.fast.equality import NUM_PROBE_BLOCKS, is_as_exact, probe_batches
from paceline.model.fast.lean import AttentionCall, LeanLayer, native_layer
from paceline.model.fast.native_layer import NativeProjection, can_arrange
from paceline.model.fast.operations import NativeOperations, NormWeight, Rotation
from paceline.model.fast.weight_memory import WeightMemory

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from paceline.model.attention import AttentionContext
    from paceline.model.fast.native_layer import NativeLayer
    from paceline.model.native import Kernels

_SEED = 4
_FIRST_POSITIONS = 1024


class NativeDraft:
    """What a `DraftModule` computes. `inputs` takes the place of its `embed`, `forward_` that of
    its `forward` and takes the pass's context; the other methods are the same.

    Shares the module's token table and borrowed embedding, and nothing else with it.
    """

    def __init__(self, module: DraftModule, kernels: Kernels) -> None:
        config = module.config
        self.kernels = kernels
        self._embed = module.embed
        self._token_table = module.token_table
        self._operations = NativeOperations(kernels)
        memory = WeightMemory()
        self._unit = NormWeight(torch.ones(config.hidden_size), config.rms_norm_eps)
        self._feature_projection: NativeProjection | None = None
        self._recurrent_projection: NativeProjection | None = None
        if config.feature_layers:
            self._feature_projection = _projection(module.feature_projection, kernels, memory)
            self._recurrent_projection = _projection(module.recurrent_projection, kernels, memory)
        self._norm = _norm(module.output_norm, config.rms_norm_eps)
        self._output = _projection(module.output, kernels, memory)
        self._frequencies = module.rotary_frequencies
        self._cos, self._sin = self._angles(_FIRST_POSITIONS)
        self._layers: list[NativeLayer] = []
        for index, layer in enumerate(module.layers):
            assert isinstance(layer, DraftLayer)
            lean = _lean(layer, index, module, self._operations, memory)
            native = native_layer(lean, config.hidden_size)
            if native is None:
                raise ValueError("a draft layer has weights that our kernels do not take")
            self._layers.append(native)

    def condition(self, features: Tensor) -> Tensor:
        """See `DraftModule.condition`."""
        assert self._feature_projection is not None
        rows = self._scaled(features.flatten(0, 1)).view(features.shape[0], -1)
        return self._feature_projection(rows)

    def recur(self, hidden: Tensor) -> Tensor:
        """See `DraftModule.recur`."""
        assert self._recurrent_projection is not None
        return self._recurrent_projection(self._scaled(hidden))

    def inputs(self, token_ids: Tensor, before: Tensor) -> Tensor:
        """What a pass begins with: `DraftModule.embed`, plus before [N, hidden_size]."""
        if self._token_table is None:
            return self._embed(token_ids) + before
        return self.kernels.pick(self._token_table, token_ids, before)

    def forward_(self, rows: Tensor, positions: Tensor, context: NativePagedAttention) -> Tensor:
        """See `DraftModule.forward`; in place on contiguous rows. positions: contiguous int64."""
        last = int(positions.max())
        if last >= len(self._cos):
            self._cos, self._sin = self._angles(2 * last)
        pick = self.kernels.pick
        rotation = Rotation(pick(self._cos, positions), pick(self._sin, positions))
        scratch = rows.new_empty(len(rows) * self._layers[0].scratch_width)
        for layer in self._layers:
            layer.forward_(rows, rotation, context, scratch)
        return rows

    def logits(self, hidden: Tensor) -> Tensor:
        """See `DraftModule.logits`."""
        return self._output(self._operations.norm(hidden, self._norm))

    def _scaled(self, rows: Tensor) -> Tensor:
        return self._operations.norm(rows, self._unit)

    def _angles(self, num_positions: int) -> tuple[Tensor, Tensor]:
        """cos and sin by position, [num_positions, head_dim] each."""
        positions = torch.arange(num_positions, dtype=torch.float32)
        angles = positions[:, None] * self._frequencies
        angles = torch.cat((angles, angles), dim=-1)
        return angles.cos().to(torch.bfloat16), angles.sin().to(torch.bfloat16)


@torch.inference_mode()
def speed_up_draft(module: DraftModule, kernels: Kernels | None) -> NativeDraft | None:
    """The module in our kernels, compared with it on random input; None where it stays as it is.

    Call it after `fold_tokens`. If it returns a draft, the module's layers and projections have
    given up their weights and must not be called any more.
    """
    if kernels is None or module.config.head_dim % 32:
        return None
    # What embeds tokens stays: the module still does that.
    linears = [
        child
        for child in module.modules()
        if isinstance(child, nn.Linear) and child is not module.token_projection
    ]
    if module.config.intermediate_size % 16:
        return None
    if not all(can_arrange(linear.weight, kernels) for linear in linears):
        return None
    native = NativeDraft(module, kernels)
    if not _is_equal(module, native):
        return None
    for linear in linears:
        linear.weight.data = linear.weight.data.new_empty(0)
    return native


def _is_equal(module: DraftModule, native: NativeDraft) -> bool:
    """Conditioning, rows behind rows, recurrence and logits, over two steps of three sequences."""
    config = module.config
    generator = torch.Generator().manual_seed(_SEED)
    exact = _in_float32(module)
    batches = probe_batches(len(module.borrowed_embedding), generator)
    shape = (
        2,
        NUM_PROBE_BLOCKS,
        batches[0].block_size,
        config.num_key_value_heads,
        config.head_dim,
    )

    def memory(dtype: torch.dtype) -> dict[int, Tensor]:
        return {index: torch.zeros(shape, dtype=dtype) for index in range(config.num_layers)}

    plain, wide = memory(torch.bfloat16), memory(torch.float32)
    ours = NativeMemory(memory(torch.bfloat16), native.kernels)
    for batch in batches:
        rows = torch.randn(batch.num_tokens, config.hidden_size, generator=generator)
        inputs = rows.to(torch.bfloat16)
        positions = torch.from_numpy(batch.positions)
        context = NativePagedAttention(batch, ours)
        value = native.forward_(inputs.clone(), positions, context)
        original = module(inputs, positions, _attend(PagedAttention(batch, plain), module))
        true = exact(inputs.float(), positions, _attend(PagedAttention(batch, wide), module))
        triples = [
            (value, original, true),
            (native.logits(inputs), module.logits(inputs), exact.logits(inputs.float())),
        ]
        if config.feature_layers:
            shaped = torch.randn(
                5, len(config.feature_layers), config.hidden_size, generator=generator
            )
            features = shaped.to(torch.bfloat16)
            triples += [
                (
                    native.condition(features),
                    module.condition(features),
                    exact.condition(features.float()),
                ),
                (native.recur(inputs), module.recur(inputs), exact.recur(inputs.float())),
            ]
        if not all(is_as_exact(*triple) for triple in triples):
            return False
    return True


def _in_float32(module: DraftModule) -> DraftModule:
    """A copy without the borrowed embedding."""
    exact = DraftModule(module.config, torch.zeros(1, module.config.hidden_size))
    exact.load_state_dict({name: value.float() for name, value in module.state_dict().items()})
    return exact


def _attend(
    context: AttentionContext, module: DraftModule
) -> Callable[[int, Tensor, Tensor, Tensor], Tensor]:
    scale = module.config.head_dim**-0.5

    def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return context.attend(layer, query, key, value, scale, None)

    return attend


def _lean(
    layer: DraftLayer,
    index: int,
    module: DraftModule,
    operations: NativeOperations,
    memory: WeightMemory,
) -> LeanLayer:
    config, kernels = module.config, operations.kernels
    return LeanLayer(
        index=index,
        call=AttentionCall(config.head_dim**-0.5, None),
        num_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        has_rotation=True,
        attention_norm=_norm(layer.attention_norm, config.rms_norm_eps),
        query_key_value=_projection(layer.query_key_value, kernels, memory),
        head_norm=None,
        output=_projection(layer.attention_output, kernels, memory),
        feed_forward_norm=_norm(layer.feed_forward_norm, config.rms_norm_eps),
        gated=NativeProjection(layer.gate_up.weight, None, kernels, is_gate=True, memory=memory),
        down=_projection(layer.down, kernels, memory),
        operations=operations,
    )


def _projection(linear: nn.Linear, kernels: Kernels, memory: WeightMemory) -> NativeProjection:
    return NativeProjection(linear.weight, linear.bias, kernels, memory=memory)


def _norm(norm: nn.RMSNorm, epsilon: float) -> NormWeight:
    return NormWeight(norm.weight.detach().to(torch.float32), epsilon)
