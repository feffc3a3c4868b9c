"""The fast path: what it replaces computes the same, and what it cannot prove it leaves alone."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from paceline.model import native
from paceline.model.attention import ATTENTION_NAME
from paceline.model.batch import Segment, pack
from paceline.model.fast import speed_up
from paceline.model.fast.equality import is_as_exact
from paceline.model.fast.native_layer import NativeProjection
from paceline.model.fast.projection import can_prepack
from paceline.model.runner import ModelRunner
from tests.model.attention_models import NUM_LAYERS, VOCABULARY_SIZE, attention_model, kv_layers

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor
    from transformers import PreTrainedModel

    from paceline.model.fast import LeanDecoder

BLOCK_SIZE = 4
LLAMA_FAMILY = [
    "llama",
    "llama-biased",
    "llama-gelu",
    "llama-narrow",
    "mistral",
    "qwen2",
    "qwen3",
    "smollm3",
]
OTHERS = ["gemma", "gemma3", "granite", "gpt2"]

_KERNELS = native.load_kernels()
needs_products = pytest.mark.skipif(
    _KERNELS is None or not _KERNELS.has_products,
    reason="no C++ compiler, or no bfloat16 dot products on this machine",
)
pytestmark = pytest.mark.skipif(
    not can_prepack(torch.zeros(2, 2, dtype=torch.bfloat16)),
    reason="no prepacked bfloat16 products on this machine",
)


def ready(name: str, dtype: torch.dtype = torch.bfloat16) -> PreTrainedModel:
    """A model of bfloat16 weights, computing in `dtype`."""
    model = attention_model(name, dtype=dtype)
    model.set_attn_implementation(ATTENTION_NAME)
    return model


def outputs(
    model: PreTrainedModel, *, feature_layers: tuple[int, ...] = (), **options: Any
) -> tuple[Tensor, Tensor | None]:
    """Logits, and features, of three packed steps: prefill, mixed, verification."""
    runner = ModelRunner(
        model, kv_layers(model, 12, BLOCK_SIZE), feature_layers=feature_layers, **options
    )
    generator = torch.Generator().manual_seed(1)
    tables = [[3, 0, 7, 1], [5, 2, 9]]
    logits, features = [], []
    for starts, counts in (((0, 0), (9, 4)), ((9, 4), (1, 3)), ((10, 7), (4, 5))):
        segments = [
            Segment(
                torch.randint(VOCABULARY_SIZE, (count,), generator=generator).tolist(),
                start,
                table,
                min(count, 4),
            )
            for start, count, table in zip(starts, counts, tables, strict=True)
        ]
        output = runner.forward(pack(segments, BLOCK_SIZE))
        logits.append(output.logits.float())
        if output.features is not None:
            features.append(output.features.float())
    return torch.cat(logits), torch.cat(features) if features else None


def error(value: Tensor, exact: Tensor) -> float:
    return float((value - exact).norm() / exact.norm())


@pytest.mark.parametrize("name", LLAMA_FAMILY)
def test_a_lean_decoder_is_as_exact_as_the_model(name: str) -> None:
    layers = (1, NUM_LAYERS - 1, -1)
    exact = outputs(ready(name, torch.float32), feature_layers=layers)
    original = outputs(ready(name), feature_layers=layers)
    model = ready(name)
    fast = speed_up(model)
    assert fast.decoder is not None
    assert fast.kept is None
    lean = outputs(model, feature_layers=layers, decoder=fast.decoder)
    for ours, theirs, true in zip(lean, original, exact, strict=True):
        assert ours is not None
        assert theirs is not None
        assert true is not None
        # Both round at every layer; ours less often.
        assert error(ours, true) <= 1.3 * error(theirs, true)


@pytest.mark.parametrize("name", OTHERS)
def test_other_models_are_sped_up_module_by_module(name: str) -> None:
    exact, _ = outputs(ready(name, torch.float32))
    original, _ = outputs(ready(name))
    model = ready(name)
    fast = speed_up(model)
    assert fast.decoder is None
    assert fast.kept is not None
    assert fast.replaced
    replaced, _ = outputs(model)
    assert error(replaced, exact) <= 1.3 * error(original, exact)


def test_without_our_kernels_a_lean_decoder_runs_on_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    exact, _ = outputs(ready("qwen3", torch.float32))
    original, _ = outputs(ready("qwen3"))
    monkeypatch.setattr("paceline.model.fast.fast_path.load_kernels", lambda: None)
    monkeypatch.setattr("paceline.model.attention_native.load_kernels", lambda: None)
    model = ready("qwen3")
    fast = speed_up(model)
    assert fast.decoder is not None
    lean, _ = outputs(model, decoder=fast.decoder)
    assert error(lean, exact) <= 1.3 * error(original, exact)


def test_what_was_replaced_is_listed() -> None:
    assert speed_up(ready("qwen3")).replaced == (
        "3 decoder layers: one lean function each",
        "3 x q_proj, k_proj, v_proj: one prepacked product",
        "3 x gate_proj, up_proj: one prepacked product",
        "6 x o_proj, down_proj: prepacked",
        "7 x RMSNorm: fused",
        "3 x q_norm, k_norm: one fused norm",
        "3 x rotary embedding: queries and keys together",
        "lm_head: prepacked",
    )
    assert "3 x mlp.up_proj: prepacked" in speed_up(ready("gemma")).replaced


@pytest.mark.parametrize("name", ["llama", "gemma"])
def test_weights_are_in_memory_once(name: str) -> None:
    model = ready(name)
    speed_up(model)
    left = [name for name, p in model.named_parameters() if p.dim() == 2 and p.numel()]
    assert left == ["model.embed_tokens.weight"]


def test_a_model_whose_layers_have_moved_says_so() -> None:
    model = ready("llama")
    speed_up(model)
    with pytest.raises(RuntimeError, match="moved"):
        model(input_ids=torch.tensor([[1]]), use_cache=False)


def test_float32_is_left_as_it_is() -> None:
    model = ready("llama", torch.float32)
    before = {name: id(module) for name, module in model.named_modules()}
    fast = speed_up(model)
    assert fast.decoder is None
    assert fast.replaced == ()
    assert {name: id(module) for name, module in model.named_modules()} == before


def test_a_step_without_logits_gives_none() -> None:
    model = ready("llama")
    decoder = speed_up(model).decoder
    runner = ModelRunner(model, kv_layers(model, 4, BLOCK_SIZE), decoder=decoder)
    output = runner.forward(pack([Segment([1, 2, 3], 0, [0], 0)], BLOCK_SIZE))
    assert output.logits.shape == (0, VOCABULARY_SIZE)


class _Scaled(nn.Module):
    """A feed-forward network whose output is scaled after all."""

    def __init__(self, inner: nn.Module, factor: float) -> None:
        super().__init__()
        for name, child in inner.named_children():
            setattr(self, name, child)
        self._factor = factor

    def forward(self, rows: Tensor) -> Tensor:
        gate = self.act_fn(self.gate_proj(rows))  # type: ignore[operator]
        product: Tensor = self.down_proj(gate * self.up_proj(rows))  # type: ignore[operator]
        return product * self._factor


def _scale_feed_forward(model: Any) -> None:
    model.model.layers[1].mlp = _Scaled(model.model.layers[1].mlp, 1.02)


def _rotate_backwards(model: Any) -> None:
    from transformers.models.llama import modeling_llama

    original = modeling_llama.LlamaAttention.forward

    def forward(self: Any, hidden_states: Tensor, position_embeddings: Any, **kwargs: Any) -> Any:
        cos, sin = position_embeddings
        return original(self, hidden_states, position_embeddings=(cos, -sin), **kwargs)

    attention = model.model.layers[2].self_attn
    attention.forward = forward.__get__(attention)


def _scale_logits(model: Any) -> None:
    inner = model.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        output = inner(*args, **kwargs)
        output.logits = output.logits * 0.5
        return output

    model.forward = forward


def _scale_between_layers(model: Any) -> None:
    model.model.layers[1].register_forward_pre_hook(
        lambda module, args, kwargs: ((args[0] * 1.01, *args[1:]), kwargs), with_kwargs=True
    )


def _share_a_layer(model: Any) -> None:
    model.model.layers[2].mlp.up_proj.weight = model.model.layers[1].mlp.up_proj.weight


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_scale_feed_forward, "layer 1 computes something else"),
        (_rotate_backwards, "layer 2 computes something else"),
        (_scale_logits, "between the output head and the logits"),
        (_scale_between_layers, "between layers 0 and 1"),
        (_share_a_layer, "share weights"),
    ],
)
def test_a_model_that_only_looks_like_llama_is_found_out(
    change: Callable[[Any], None], reason: str
) -> None:
    model = ready("llama")
    change(model)
    reference = copy.deepcopy(model)
    if change is not _scale_logits:  # a copy shares the patched method with its original
        expected, _ = outputs(reference)
    fast = speed_up(model)
    assert fast.decoder is None
    assert fast.kept is not None
    assert reason in fast.kept
    if change is not _scale_logits:
        replaced, _ = outputs(model)
        assert error(replaced, expected) < 0.05


def test_equality_allows_rounding_and_nothing_else() -> None:
    generator = torch.Generator().manual_seed(0)
    exact = torch.randn(20, 64, generator=generator)
    rounded = exact.to(torch.bfloat16)
    other = (exact * (1 + 2**-9)).to(torch.bfloat16)
    assert is_as_exact(rounded, other, exact)
    assert not is_as_exact((exact * 1.01).to(torch.bfloat16), rounded, exact)
    assert not is_as_exact(rounded.roll(1, 0), rounded, exact)
    assert not is_as_exact(rounded * torch.nan, rounded, exact)


def native_decoder(name: str) -> tuple[PreTrainedModel, LeanDecoder]:
    model = ready(name)
    decoder = speed_up(model).decoder
    assert decoder is not None
    return model, decoder


@needs_products
@pytest.mark.parametrize("name", ["llama", "llama-biased", "mistral", "qwen3", "smollm3"])
def test_a_token_comes_out_the_same_alone_in_company_and_verified(name: str) -> None:
    """Bit for bit, whatever else is in the step: speculation then cannot change a greedy answer."""
    model, decoder = native_decoder(name)
    generator = torch.Generator().manual_seed(4)
    ids = torch.randint(VOCABULARY_SIZE, (3, 40), generator=generator).tolist()
    tables = [[0, 3, 5, 7, 9, 11, 13, 15, 17, 19], [2, 4, 6, 8], [10, 12, 14, 16]]

    def run(*parts: tuple[int, int, int], runner: ModelRunner) -> list[Tensor]:
        segments = [
            Segment(ids[which][start:end], start, tables[which], end - start)
            for which, start, end in parts
        ]
        logits = runner.forward(pack(segments, BLOCK_SIZE)).logits
        return list(torch.split(logits, [end - start for _, start, end in parts]))

    def fresh() -> ModelRunner:
        return ModelRunner(model, kv_layers(model, 24, BLOCK_SIZE), decoder=decoder)

    one = fresh()
    alone = [run((0, position, position + 1), runner=one)[0] for position in range(33)]
    many = fresh()
    together = [
        run((0, 0, 13), (1, 0, 9), runner=many)[0],
        run((1, 9, 10), (0, 13, 18), (2, 0, 15), runner=many)[1],
        run((0, 18, 19), runner=many)[0],
        run((2, 15, 16), (1, 10, 15), (0, 19, 33), runner=many)[2],
    ]
    assert torch.equal(torch.cat(alone), torch.cat(together))


@needs_products
@pytest.mark.parametrize("num_rows", [1, 2, 11, 12, 13, 97, 200])
@pytest.mark.parametrize(("inputs", "outputs"), [(64, 96), (50, 33), (576, 32)])
def test_products(num_rows: int, inputs: int, outputs: int) -> None:
    kernels = native.load_kernels()
    assert kernels is not None
    generator = torch.Generator().manual_seed(6)
    rows = torch.randn(num_rows, inputs, generator=generator).to(torch.bfloat16)
    weight = torch.randn(outputs, inputs, generator=generator).to(torch.bfloat16)
    bias = torch.randn(outputs, generator=generator).to(torch.bfloat16)
    for each in (None, bias):
        exact = nn.functional.linear(rows.double(), weight.double())
        if each is not None:
            exact += each.double()
        # Products are exact in float32, and so is the rounding at the end; in between are
        # `inputs` additions, each off by at most half of 2^-23 of what has been summed.
        scale = nn.functional.linear(rows.double().abs(), weight.double().abs())
        allowed = 2**-8 * exact.abs() + inputs * 2**-24 * scale + 1e-6
        value = NativeProjection(weight, each, kernels)(rows).double()
        assert bool(((value - exact).abs() <= allowed).all())


@needs_products
@pytest.mark.parametrize(("inputs", "outputs"), [(64, 96), (50, 33), (576, 32), (1536, 64)])
def test_a_row_of_a_product_does_not_depend_on_its_company(inputs: int, outputs: int) -> None:
    """Whatever unit computes it, and however many rows fill its registers."""
    kernels = native.load_kernels()
    assert kernels is not None
    generator = torch.Generator().manual_seed(7)
    rows = torch.randn(300, inputs, generator=generator).to(torch.bfloat16)
    weight = torch.randn(outputs, inputs, generator=generator).to(torch.bfloat16)
    product = NativeProjection(weight, None, kernels)
    whole = product(rows)
    for first, count in [(0, 1), (299, 1), (3, 15), (5, 16), (7, 17), (100, 32), (2, 33), (1, 257)]:
        assert torch.equal(product(rows[first : first + count]), whole[first : first + count])
    spoiled = rows.clone()
    spoiled[::2] = float("nan")
    assert torch.equal(product(spoiled)[1::2], whole[1::2])


@needs_products
def test_gated_products() -> None:
    kernels = native.load_kernels()
    assert kernels is not None
    generator = torch.Generator().manual_seed(8)
    rows = torch.randn(5, 64, generator=generator).to(torch.bfloat16)
    weight = torch.randn(96, 64, generator=generator).to(torch.bfloat16)
    gate, up = nn.functional.linear(rows.double(), weight.double()).chunk(2, dim=-1)
    exact = nn.functional.silu(gate) * up
    value = NativeProjection(weight, None, kernels, is_gate=True)(rows).double()
    assert value.shape == (5, 48)
    assert bool(((value - exact).abs() <= 2**-7 * exact.abs() + 1e-3).all())


@pytest.mark.skipif(native.load_kernels() is None, reason="no C++ compiler on this machine")
@pytest.mark.parametrize("num_rows", [1, 3, 40])
@pytest.mark.parametrize("width", [64, 100])
def test_row_kernels(num_rows: int, width: int) -> None:
    kernels = native.load_kernels()
    assert kernels is not None
    generator = torch.Generator().manual_seed(2)
    rows = torch.randn(num_rows, 2 * width, generator=generator).to(torch.bfloat16)
    rows[0, 0], rows[0, 1] = 90.0, -90.0
    gate, up = rows.double().chunk(2, dim=-1)
    _assert_rounded(kernels.silu_mul(rows), nn.functional.silu(gate) * up)
    weight = torch.randn(2 * width, generator=generator)
    norm = nn.functional.rms_norm(rows.double(), (2 * width,), weight.double(), 1e-5)
    _assert_rounded(kernels.norm(rows, weight, 1e-5), norm)
    added = torch.randn(num_rows, 2 * width, generator=generator).to(torch.bfloat16)
    total, normed = kernels.add_norm(rows, added, weight, 1e-5)
    assert torch.equal(total, rows + added)
    norm = nn.functional.rms_norm(total.double(), (2 * width,), weight.double(), 1e-5)
    _assert_rounded(normed, norm)


def _assert_rounded(value: Tensor, exact: Tensor) -> None:
    """One rounding to bfloat16 of a float32 result."""
    assert value.dtype is torch.bfloat16
    assert bool(((value.double() - exact).abs() <= 2**-8 * exact.abs() + 1e-6).all())
