"""Proof on random input that an equivalent computes what the original does.

Two programs for the same formula round differently, so bits cannot be compared. Layers are compared
twice. In float32 both must agree to one part in ten thousand: a hundred times what the order of
sums makes of them, and far less than a forgotten factor, a wrong norm or another activation would
show. In the model's own type the measure is the distance from the original in float32 on the same
weights: `is_as_exact` accepts an equivalent whose distance is at most twice the original's. Right
ones come out near one (they round fewer times); a wrong kernel or a misplaced weight is many
roundings off.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from paceline.model.attention_cpu import PagedAttention
from paceline.model.attention_native import NativeMemory, NativePagedAttention
from paceline.model.batch import PackedBatch, Segment, pack
from paceline.model.fast.lean import AttentionCall, make_layer, native_layer
from paceline.model.fast.operations import Rotation, TorchOperations
from paceline.model.fast.recognise import NotRecognisedError, find_layer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from transformers import PreTrainedModel

    from paceline.model.fast.operations import Operations
    from paceline.model.fast.recognise import DecoderParts, LayerParts

_FLOAT32_TOLERANCE = 1e-4
_MOST_TIMES_THE_ORIGINALS_ERROR = 2.0
_BLOCK_SIZE = 8
# Blocks of the three sequences of `probe_batches`, out of order so that paging is exercised.
_TABLES = ((4, 1), (0, 5), (3, 2))
NUM_PROBE_BLOCKS = 6


def is_as_exact(value: Tensor, original: Tensor, exact: Tensor) -> bool:
    """Whether `value` is as near to `exact` (float32) as `original` is, within a factor of two."""
    if value.shape != original.shape or not bool(torch.isfinite(value).all()):
        return False
    error = (value.float() - exact).norm()
    allowed = (original.float() - exact).norm() * _MOST_TIMES_THE_ORIGINALS_ERROR
    # Exact originals (few terms, no rounding) leave room for one rounding of the result.
    return bool(error <= allowed + exact.norm() * torch.finfo(original.dtype).eps / 4)


def probe_batches(num_ids: int, generator: torch.Generator) -> tuple[PackedBatch, ...]:
    """Two steps of three sequences with random tokens: prefill, then more prefill beside a
    verification of four tokens and a decode."""
    starts = (0, 0, 0), (6, 5, 9)
    lengths = (6, 5, 9), (7, 4, 1)
    batches = []
    for begins, counts in zip(starts, lengths, strict=True):
        segments = [
            Segment(
                torch.randint(num_ids, (count,), generator=generator).tolist(), start, table, count
            )
            for start, count, table in zip(begins, counts, _TABLES, strict=True)
        ]
        batches.append(pack(segments, _BLOCK_SIZE))
    return tuple(batches)


class ScratchMemory:
    """K/V memory for probing, made as layers ask for it; remembers how they asked."""

    def __init__(self) -> None:
        self._layers: dict[int, Tensor] = {}
        self.calls: dict[int, AttentionCall] = {}
        self._attention: PagedAttention | None = None

    def begin(self, batch: PackedBatch) -> ScratchMemory:
        """The context of the next forward pass."""
        self._attention = PagedAttention(batch, self._layers)
        return self

    def attend(
        self,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scale: float,
        sliding_window: int | None,
    ) -> Tensor:
        """See `AttentionContext.attend`."""
        if self._attention is None:
            raise RuntimeError("begin() comes before attend()")
        if layer not in self._layers:
            self._layers[layer] = key.new_zeros(2, NUM_PROBE_BLOCKS, _BLOCK_SIZE, *key.shape[1:])
        self.calls[layer] = AttentionCall(scale, sliding_window)
        return self._attention.attend(layer, query, key, value, scale, sliding_window)


@dataclass(slots=True)
class Trace:
    """One step of the original: what went into each layer, and around them.

    inputs: [1, T, hidden] per layer. arguments: the layers' keyword arguments.
    """

    batch: PackedBatch
    embedded: Tensor | None = None
    inputs: list[Tensor] = field(default_factory=list)
    arguments: list[dict[str, Any]] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)
    norm_input: Tensor | None = None
    norm_output: Tensor | None = None
    head_input: Tensor | None = None
    head_output: Tensor | None = None
    logits: Tensor | None = None


def trace(
    model: PreTrainedModel, parts: DecoderParts, batches: tuple[PackedBatch, ...]
) -> tuple[list[Trace], dict[int, AttentionCall]]:
    """Run the original over the batches, watching."""
    memory = ScratchMemory()
    traces = []
    for batch in batches:
        seen = Trace(batch)
        hooks = list(_watch(parts, seen))
        try:
            output = model(
                input_ids=torch.from_numpy(batch.token_ids)[None],
                position_ids=torch.from_numpy(batch.positions)[None],
                use_cache=False,
                logits_to_keep=torch.from_numpy(batch.logit_rows),
                attention_context=memory.begin(batch),
            )
        finally:
            for hook in hooks:
                hook.remove()
        seen.logits = output.logits
        traces.append(seen)
    return traces, memory.calls


def _watch(parts: DecoderParts, seen: Trace) -> Iterator[Any]:
    def layer_hook(module: nn.Module, args: Any, kwargs: dict[str, Any], output: Any) -> None:
        rows = args[0] if args else kwargs["hidden_states"]
        seen.inputs.append(rows)
        seen.arguments.append({k: v for k, v in kwargs.items() if k != "hidden_states"})
        seen.outputs.append(output[0] if isinstance(output, tuple) else output)

    def embedding_hook(module: nn.Module, args: Any, output: Tensor) -> None:
        seen.embedded = output

    def norm_hook(module: nn.Module, args: Any, output: Tensor) -> None:
        seen.norm_input, seen.norm_output = args[0], output

    def head_hook(module: nn.Module, args: Any, output: Tensor) -> None:
        seen.head_input, seen.head_output = args[0], output

    for part in parts.layers:
        yield part.layer.register_forward_hook(layer_hook, with_kwargs=True)
    yield parts.embedding.register_forward_hook(embedding_hook)
    yield parts.norm.register_forward_hook(norm_hook)
    yield parts.head.register_forward_hook(head_hook)


def check_wiring(seen: Trace) -> None:
    """The parts must be all there is: each one's output, bit for bit, is the next one's input."""
    stages = [
        ("the embedding and the first layer", seen.embedded, seen.inputs[0]),
        ("the last layer and the norm", seen.outputs[-1], seen.norm_input),
        ("the output head and the logits", seen.head_output, seen.logits),
    ]
    for index in range(1, len(seen.inputs)):
        between = f"layers {index - 1} and {index}"
        stages.append((between, seen.outputs[index - 1], seen.inputs[index]))
    rows = torch.from_numpy(seen.batch.logit_rows)
    kept = None if seen.norm_output is None else seen.norm_output[:, rows]
    stages.append(("the norm and the output head", kept, seen.head_input))
    for between, left, right in stages:
        if left is None or right is None or not torch.equal(left, right):
            raise NotRecognisedError(f"something happens between {between}")


def check_layer(
    parts: LayerParts,
    call: AttentionCall,
    operations: Operations,
    traces: list[Trace],
    *,
    has_rotation: bool,
) -> None:
    """Compare a layer with its equivalent, over both steps of the trace.

    First both in float32, which shows that the formula is the same; then in the model's own type,
    which shows that the kernels and the packed weights are right. Inputs are those of the trace at
    a 64th of their size: an RMSNorm undoes that, so that what the layer adds stands out from what
    it passes on.
    """
    exact_layer = copy.deepcopy(parts.layer).float()
    formula = make_layer(
        find_layer(exact_layer, parts.index), call, TorchOperations(), has_rotation=has_rotation
    )
    lean = make_layer(parts, call, operations, has_rotation=has_rotation)
    native = native_layer(lean, parts.query.in_features)
    native_memory = None
    if native is not None and operations.kernels is not None:
        shape = (2, NUM_PROBE_BLOCKS, _BLOCK_SIZE, lean.num_kv_heads, lean.head_dim)
        layer_memory = {parts.index: parts.key.weight.new_zeros(shape)}
        native_memory = NativeMemory(layer_memory, operations.kernels)
    memories = [ScratchMemory() for _ in range(4)]
    for seen in traces:
        rows = seen.inputs[parts.index] / 64
        arguments = dict(seen.arguments[parts.index])
        cos, sin = arguments["position_embeddings"]
        original = _run(parts.layer, rows, arguments, memories[0], seen.batch)
        wide = arguments | {"position_embeddings": (cos.float(), sin.float())}
        exact = _run(exact_layer, rows.float(), wide, memories[1], seen.batch)
        rotation = Rotation(cos[0].float().contiguous(), sin[0].float().contiguous())
        same = formula.forward(rows[0].float(), rotation, memories[2].begin(seen.batch))[None]
        if not bool((same - exact).norm() <= exact.norm() * _FLOAT32_TOLERANCE):
            raise NotRecognisedError(f"layer {parts.index} computes something else")
        rotation = Rotation(cos[0].contiguous(), sin[0].contiguous())
        value = lean.forward(rows[0], rotation, memories[3].begin(seen.batch))[None]
        values = [value]
        if native is not None and native_memory is not None:
            in_place = rows[0].clone()
            scratch = in_place.new_empty(len(in_place) * native.scratch_width)
            context = NativePagedAttention(seen.batch, native_memory)
            native.forward_(in_place, rotation, context, scratch)
            values.append(in_place[None])
        if not all(is_as_exact(value, original, exact) for value in values):
            raise NotRecognisedError(f"layer {parts.index} comes out less exact")


def _run(
    layer: nn.Module,
    rows: Tensor,
    arguments: dict[str, Any],
    memory: ScratchMemory,
    batch: PackedBatch,
) -> Tensor:
    output = layer(rows, **(arguments | {"attention_context": memory.begin(batch)}))
    result: Tensor = output[0] if isinstance(output, tuple) else output
    return result


def check_module(original: nn.Module, equivalent: Callable[[Tensor], Tensor], rows: Tensor) -> bool:
    """Whether a module of one input [T, inputs] has the equivalent."""
    exact = copy.deepcopy(original).float()(rows.float())
    return is_as_exact(equivalent(rows), original(rows), exact)
