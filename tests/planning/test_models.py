"""Shapes: parameters against published counts and transformers, and where shapes come from."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from paceline.core.errors import ConfigError, UnsupportedModelError
from paceline.planning.acceptance import DraftKind
from paceline.planning.known_models import KNOWN_MODELS, find_known_model
from paceline.planning.shape import ModelShape, one_layer_head
from paceline.planning.sources import (
    load_draft,
    load_model,
    shape_from_config,
    shape_from_numbers,
)

if TYPE_CHECKING:
    from pathlib import Path

# Parameters as the models' own cards and checkpoints state them.
PUBLISHED_PARAMS = {
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.1-405b": 405_853_388_800,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "mistral-7b": 7_248_023_552,
    "smollm2-135m": 134_515_008,
    "smollm2-360m": 361_821_120,
    "smollm2-1.7b": 1_711_376_384,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-14b": 14_770_033_664,
    "qwen2.5-32b": 32_763_876_352,
    "qwen2.5-72b": 72_706_203_648,
    "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "qwen3-14b": 14_768_307_200,
    "qwen3-32b": 32_762_123_264,
    "qwen3-30b-a3b": 30_532_122_624,
    "mixtral-8x7b": 46_702_792_704,
    "mixtral-8x22b": 140_630_071_296,
}


@pytest.mark.parametrize("name", KNOWN_MODELS)
def test_known_models_have_the_published_number_of_parameters(name: str) -> None:
    assert KNOWN_MODELS[name].total_params == PUBLISHED_PARAMS[name]


# Small members of each family, built by transformers on the meta device: an independent count.
SMALL: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"sliding_window": None},
    "qwen2": {},
    "qwen3": {"head_dim": 32},
    "gemma": {"head_dim": 32},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen3_moe": {
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 64,
        "head_dim": 32,
    },
    "qwen2_moe": {
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 64,
        "shared_expert_intermediate_size": 128,
    },
}


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("model_type", SMALL)
def test_configs_count_as_transformers_counts(model_type: str, tied: bool) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config = transformers.AutoConfig.for_model(
        model_type,
        hidden_size=96,
        intermediate_size=160,
        num_hidden_layers=3,
        num_attention_heads=6,
        num_key_value_heads=2,
        vocab_size=512,
        tie_word_embeddings=tied,
        **SMALL[model_type],
    )
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    counted = sum(parameter.numel() for parameter in model.parameters())
    shape = shape_from_config(json.loads(config.to_json_string(use_diff=False)), model_type)
    # A shared expert has a gate of one row, which is the only thing left out.
    left_out = 3 * 96 if model_type == "qwen2_moe" else 0
    assert shape.total_params == counted - left_out
    assert shape.active_params <= shape.total_params


def test_active_parameters_of_experts() -> None:
    """Mixtral 8x7B uses 12.9B of 46.7B a token with its embedding, Qwen3-30B-A3B 3.3B."""
    mixtral, qwen = KNOWN_MODELS["mixtral-8x7b"], KNOWN_MODELS["qwen3-30b-a3b"]
    assert (mixtral.active_params + mixtral.embedding_params) / 1e9 == pytest.approx(12.9, abs=0.05)
    assert (qwen.active_params + qwen.embedding_params) / 1e9 == pytest.approx(3.35, abs=0.05)


def test_touched_experts_grow_with_rows_and_stay_below_all() -> None:
    mixtral = KNOWN_MODELS["mixtral-8x7b"]
    touched = [mixtral.touched_experts(rows) for rows in range(1, 40)]
    assert touched[0] == pytest.approx(2.0)
    assert touched[1] == pytest.approx(3.5)  # 2 + 2 x (1 - 2/8)
    assert touched == sorted(touched)
    assert touched[-1] <= 8.0
    assert KNOWN_MODELS["llama-3.1-8b"].touched_experts(5) == 0.0


def test_kv_of_grouped_query_attention() -> None:
    """Llama 3.1 70B: 80 layers x 8 K/V heads x 128 x 2 = 163,840 elements a token."""
    assert KNOWN_MODELS["llama-3.1-70b"].kv_elements_per_token() == 163_840
    assert KNOWN_MODELS["smollm2-135m"].kv_elements_per_token() == 30 * 3 * 64 * 2


def test_sliding_layers_read_a_window() -> None:
    shape = ModelShape(
        name="half sliding",
        num_layers=4,
        hidden_size=64,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        intermediate_size=128,
        vocab_size=100,
        sliding_window=100,
        num_sliding_layers=3,
    )
    assert shape.attended_tokens(1000) == pytest.approx((1000 + 3 * 100) / 4)
    assert shape.attended_tokens(50) == pytest.approx(50)


def test_one_layer_head() -> None:
    """The published EAGLE-3 head of Llama 3.1 8B: fc 3 x 4096 x 4096, one layer with inputs of
    8192, an output head of 32,000 rows: 0.42B, and no embedding of its own."""
    head = one_layer_head(KNOWN_MODELS["llama-3.1-8b"], 32000)
    fusion = 3 * 4096 * 4096
    attention = 8192 * (4096 + 2 * 1024) + 4096 * 4096
    feed_forward = 3 * 4096 * 14336
    norms = 3 * 4096
    assert head.total_params == fusion + attention + feed_forward + norms + 32000 * 4096
    assert head.kv_elements_per_token() == 2 * 8 * 128
    with pytest.raises(ConfigError, match="vocabulary"):
        one_layer_head(KNOWN_MODELS["llama-3.1-8b"], 200_000)


@pytest.mark.parametrize(
    "name",
    [
        "llama-3.1-8b",
        "Llama-3.1-8B-Instruct",
        "meta-llama/Llama-3.1-8B-Instruct",
        "meta-llama/Meta-Llama-3-8B-Instruct",
    ],
)
def test_names_are_forgiving(name: str) -> None:
    assert find_known_model(name) is KNOWN_MODELS["llama-3.1-8b"]


def test_unknown_names_get_help() -> None:
    with pytest.raises(ConfigError, match=r"llama-3\.1-70b"):
        load_model("llama-3.1-7b")
    with pytest.raises(ConfigError) as caught:
        load_model("no-such-thing", field="draft")
    assert caught.value.field == "draft"


LLAMA_CONFIG = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "tie_word_embeddings": False,
}


def test_a_folder_with_a_config(tmp_path: Path) -> None:
    folder = tmp_path / "my-llama"
    folder.mkdir()
    config = {**LLAMA_CONFIG, "quantization_config": {"quant_method": "awq", "bits": 4}}
    (folder / "config.json").write_text(json.dumps(config))
    for text in (str(folder), str(folder / "config.json")):
        source = load_model(text)
        assert source.shape.total_params == PUBLISHED_PARAMS["llama-3.1-8b"]
        assert source.shape.name == "my-llama"
        assert source.precision == "int4"


def test_folders_that_do_not_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has no config\.json"):
        load_model(str(tmp_path))
    (tmp_path / "config.json").write_text("[1, 2")
    with pytest.raises(ConfigError, match="cannot read"):
        load_model(str(tmp_path))
    (tmp_path / "config.json").write_text("[1, 2]")
    with pytest.raises(ConfigError, match="JSON object"):
        load_model(str(tmp_path))
    (tmp_path / "config.json").write_text('{"hidden_size": 8}')
    with pytest.raises(ConfigError, match="num_hidden_layers"):
        load_model(str(tmp_path))


@pytest.mark.parametrize(
    ("extra", "word"),
    [
        ({"kv_lora_rank": 512}, "latent"),
        ({"layer_types": ["full_attention", "linear_attention"]}, "linear_attention"),
    ],
)
def test_models_of_other_laws_are_refused(extra: dict[str, Any], word: str) -> None:
    with pytest.raises(UnsupportedModelError, match=word):
        shape_from_config({**LLAMA_CONFIG, **extra}, "x")


@pytest.mark.parametrize(
    ("extra", "sliding"),
    [
        ({"sliding_window": 4096, "use_sliding_window": False}, 0),
        ({"sliding_window": 4096, "model_type": "mistral"}, 32),
        ({"sliding_window": 4096, "model_type": "gemma2"}, 16),
        ({"sliding_window": 1024, "sliding_window_pattern": 6}, 27),
        ({"sliding_window": 128, "layer_types": ["sliding_attention", "full_attention"] * 16}, 16),
        ({"sliding_window": None}, 0),
    ],
)
def test_sliding_windows_in_configs(extra: dict[str, Any], sliding: int) -> None:
    assert shape_from_config({**LLAMA_CONFIG, **extra}, "x").num_sliding_layers == sliding


def test_nested_text_config_and_stated_precision(tmp_path: Path) -> None:
    nested = {"text_config": LLAMA_CONFIG, "quantization_config": {"quant_method": "fp8"}}
    (tmp_path / "config.json").write_text(json.dumps(nested))
    source = load_model(str(tmp_path))
    assert source.shape.num_layers == 32
    assert source.precision == "fp8"


def test_plain_numbers_hit_the_total() -> None:
    shape = shape_from_numbers("params=7e9,layers=32,hidden=4096,heads=32,kv_heads=8,vocab=32000")
    assert shape.total_params == pytest.approx(7e9, rel=1e-4)
    assert shape.head_dim == 128
    wide = shape_from_numbers("layers=2,hidden=64,heads=4,vocab=100,intermediate=128,tied=yes")
    assert wide.num_kv_heads == 4
    assert wide.tied_embeddings


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("params=7e9,layers=32", "hidden"),
        ("params=7e9,colour=red", "colour"),
        ("params=1e6,layers=32,hidden=4096,heads=32,vocab=32000", "less than"),
        ("params=x,layers=32,hidden=4096,heads=32,vocab=32000", "whole number"),
        ("params=7e9,layers=32,hidden=4096,heads=32,kv_heads=5,vocab=32000", "multiple"),
        ("params=7e9,layers=0,hidden=4096,heads=32,vocab=32000", "num_layers"),
    ],
)
def test_plain_numbers_that_do_not_do(text: str, word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        shape_from_numbers(text)


def test_drafts() -> None:
    target = KNOWN_MODELS["llama-3.1-8b"]
    assert load_draft("ngram", target).kind is DraftKind.NGRAM
    assert load_draft("ngram", target).shape is None
    head = load_draft("head:16000", target)
    assert head.kind is DraftKind.HEAD
    assert head.shape is not None
    assert head.shape.output_vocab_size == 16000
    trimmed = load_draft("smollm2-135m:vocab=8192", target)
    full = load_draft("smollm2-135m", target)
    assert trimmed.shape is not None
    assert full.shape is not None
    saved = full.shape.active_params - trimmed.shape.active_params
    assert saved == (49152 - 8192) * 576
    # The trimmed head is a copy of rows, because the embedding stays whole.
    assert trimmed.shape.total_params == full.shape.total_params + 8192 * 576


@pytest.mark.parametrize("text", ["head:many", "smollm2-135m:vocab=0", "smollm2-135m:vocab=99999"])
def test_drafts_that_do_not_do(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_draft(text, KNOWN_MODELS["llama-3.1-8b"])
    assert caught.value.field == "draft"


def test_experts_need_a_choice() -> None:
    with pytest.raises(ConfigError, match="experts_per_token"):
        shape_from_numbers("layers=2,hidden=64,heads=4,vocab=100,intermediate=128,experts=4")
