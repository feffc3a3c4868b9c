"""Which models are served and which are refused, from their configurations alone."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    BambaConfig,
    BertConfig,
    DeepseekV3Config,
    FalconConfig,
    Gemma2Config,
    Gemma3nTextConfig,
    Gemma3TextConfig,
    GPT2Config,
    GPTNeoXConfig,
    GptOssConfig,
    GraniteConfig,
    Lfm2Config,
    Llama4TextConfig,
    MambaConfig,
    MistralConfig,
    MixtralConfig,
    Olmo2Config,
    OPTConfig,
    Phi3Config,
    Qwen2Config,
    Qwen3Config,
    Qwen3NextConfig,
    SmolLM3Config,
    T5Config,
)

from paceline.core.config import Device, Dtype
from paceline.core.errors import ModelError, UnsupportedModelError
from paceline.model.loading import load_model, load_target
from paceline.model.source import ModelSource, fetch_weights, find_source
from paceline.model.support import describe_model
from tests.model.tiny import llama_config, write_model

if TYPE_CHECKING:
    from pathlib import Path

    from transformers import PreTrainedConfig

SIZES: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def only_config(folder: Path, config: PreTrainedConfig) -> ModelSource:
    """A folder with a configuration and no weights."""
    config.save_pretrained(folder)
    return find_source(str(folder))


def sized(kind: type[PreTrainedConfig], **changes: Any) -> PreTrainedConfig:
    return kind(**(SIZES | changes))


SERVED = [
    (sized(Qwen2Config), (2, 8)),
    (sized(Qwen3Config, head_dim=16), (2, 16)),
    (sized(MistralConfig, sliding_window=16), (2, 8)),
    (sized(MixtralConfig), (2, 8)),
    (sized(Gemma3TextConfig, head_dim=16), (2, 16)),
    (sized(Gemma2Config, head_dim=16, attn_logit_softcapping=None), (2, 16)),
    (sized(Phi3Config), (2, 8)),
    (sized(GraniteConfig), (2, 8)),
    (sized(Olmo2Config), (2, 8)),
    (sized(SmolLM3Config), (2, 8)),
    (sized(GPTNeoXConfig), (4, 8)),
    (sized(OPTConfig, ffn_dim=48, word_embed_proj_dim=32), (4, 8)),
    (GPT2Config(vocab_size=64, n_embd=32, n_head=4, n_layer=4, n_positions=256), (4, 8)),
]


@pytest.mark.parametrize(
    ("config", "kv_shape"), SERVED, ids=lambda value: getattr(value, "model_type", "")
)
def test_a_model_that_is_served(
    tmp_path: Path, config: PreTrainedConfig, kv_shape: tuple[int, int]
) -> None:
    described = describe_model(only_config(tmp_path, config))
    assert described.kv_layers == (kv_shape,) * 4
    assert described.vocabulary_rows == described.embedding_rows == 64
    assert described.max_model_len == 256
    assert described.hidden_size == 32
    build: Any = AutoModelForCausalLM.from_config
    assert described.num_parameters == sum(p.numel() for p in build(config).parameters())


REFUSED = [
    (sized(Gemma2Config, head_dim=16), "caps its logits"),
    (sized(GptOssConfig, head_dim=16, num_local_experts=2), "s_aux"),
    (sized(FalconConfig), "no attention interface"),
    (sized(MambaConfig), "layers of type linear_attention"),
    (sized(BambaConfig, attn_layer_indices=[1], mamba_n_heads=4), "recurrent|layers of type|state"),
    (
        sized(Qwen3NextConfig, head_dim=16, num_experts=2, num_experts_per_tok=1),
        "layers of type linear_attention",
    ),
    (
        sized(Lfm2Config, layer_types=["conv", "full_attention"] * 2),
        "layers of type conv",
    ),
    (
        sized(Llama4TextConfig, head_dim=16, num_local_experts=2),
        "layers of type chunked_attention",
    ),
    (
        sized(
            DeepseekV3Config,
            num_key_value_heads=4,
            q_lora_rank=16,
            kv_lora_rank=16,
            qk_rope_head_dim=8,
            qk_nope_head_dim=8,
            v_head_dim=8,
            first_k_dense_replace=4,
        ),
        "differ in width",
    ),
    (sized(Gemma3nTextConfig, num_kv_shared_layers=2), "share K/V memory"),
    (sized(BertConfig), "sees later tokens"),
    (T5Config(vocab_size=64, d_model=32), "encoder-decoder"),
    (llama_config(quantization_config={"quant_method": "awq", "bits": 4}), "quantised"),
    (sized(Gemma3TextConfig, head_dim=16, use_bidirectional_attention=True), "sees later tokens"),
]


@pytest.mark.parametrize(
    ("config", "reason"), REFUSED, ids=lambda value: getattr(value, "model_type", "")
)
def test_a_model_that_is_refused_with_the_reason(
    tmp_path: Path, config: PreTrainedConfig, reason: str
) -> None:
    source = only_config(tmp_path, config)
    with pytest.raises(UnsupportedModelError, match=reason) as caught:
        describe_model(source)
    assert caught.value.field == "target"
    assert config.model_type in str(caught.value)
    assert "\n" not in str(caught.value)


def test_lengths_beyond_a_length_dependent_rotation_are_cut_off(tmp_path: Path) -> None:
    longrope = {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0] * 4,
        "long_factor": [2.0] * 4,
        "original_max_position_embeddings": 64,
    }
    config = sized(Phi3Config, rope_parameters=longrope, original_max_position_embeddings=64)
    assert describe_model(only_config(tmp_path / "a", config)).max_model_len == 64
    dynamic = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}
    config = llama_config(rope_parameters=dynamic)
    assert describe_model(only_config(tmp_path / "b", config)).max_model_len == 128
    static = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}
    config = llama_config(rope_parameters=static)
    assert describe_model(only_config(tmp_path / "c", config)).max_model_len == 128


def test_the_stored_dtype_is_known(tmp_path: Path) -> None:
    for dtype in (Dtype.FLOAT16, Dtype.BFLOAT16, Dtype.FLOAT32):
        source = only_config(tmp_path / dtype, llama_config(dtype=dtype.value))
        assert describe_model(source).dtype is dtype


class TestSource:
    def test_what_is_no_model_is_refused_in_one_line(self, tmp_path: Path) -> None:
        (tmp_path / "file.bin").write_bytes(b"x")
        for spec, words in [
            (str(tmp_path), "no config.json"),
            (str(tmp_path / "file.bin"), "no .gguf"),
            (str(tmp_path / "absent"), "does not exist"),
            ("./absent", "does not exist"),
        ]:
            with pytest.raises(ModelError, match=words) as caught:
                find_source(spec, field="draft")
            assert caught.value.field == "draft"
            assert "\n" not in str(caught.value)

    def test_a_hub_id_without_a_network_is_refused_in_one_line(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
        with pytest.raises(ModelError, match="not in the hub's cache") as caught:
            find_source("nobody/nothing")
        assert "\n" not in str(caught.value)

    def test_missing_weights_are_named(self, tmp_path: Path) -> None:
        source = only_config(tmp_path, llama_config())
        with pytest.raises(ModelError, match=r"has no model\.safetensors"):
            fetch_weights(source)
        index = {"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
        (tmp_path / "one.safetensors").write_bytes(b"")
        with pytest.raises(ModelError, match=r"has no two\.safetensors"):
            fetch_weights(source)
        (tmp_path / "model.safetensors.index.json").write_text("[]")
        with pytest.raises(ModelError, match="is broken"):
            fetch_weights(source)

    def test_an_unreadable_configuration_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "config.json").write_text(json.dumps({"model_type": "unheard-of"}))
        with pytest.raises(ModelError, match="unheard-of"):
            describe_model(find_source(str(tmp_path)))


class TestLoad:
    def test_a_loaded_model_only_runs(self, tmp_path: Path) -> None:
        write_model(tmp_path, llama_config(tie_word_embeddings=True))
        model = load_target(str(tmp_path), dtype=Dtype.FLOAT32)
        assert not model.training
        assert not any(parameter.requires_grad for parameter in model.parameters())
        assert model.dtype is torch.float32
        assert model.config._attn_implementation == "ragged_kv"
        half = load_target(str(tmp_path), dtype=Dtype.BFLOAT16, attn_implementation="sdpa")
        assert half.dtype is torch.bfloat16
        described = describe_model(find_source(str(tmp_path)))
        assert described.num_parameters == sum(p.numel() for p in model.parameters())

    def test_a_missing_tensor_is_never_made_up(self, tmp_path: Path) -> None:
        from safetensors.torch import load_file, save_file

        write_model(tmp_path, llama_config())
        path = tmp_path / "model.safetensors"
        tensors = load_file(path)
        del tensors["model.layers.1.mlp.up_proj.weight"]
        save_file(tensors, path, metadata={"format": "pt"})
        described = describe_model(find_source(str(tmp_path)))
        with pytest.raises(ModelError, match=r"1 tensors are missing.*layers\.1\.mlp\.up_proj"):
            load_model(described, dtype=Dtype.FLOAT32, device=Device.CPU)

    def test_a_broken_file_is_one_line(self, tmp_path: Path) -> None:
        write_model(tmp_path, llama_config())
        path = tmp_path / "model.safetensors"
        path.write_bytes(path.read_bytes()[:100])
        described = describe_model(find_source(str(tmp_path)))
        with pytest.raises(ModelError, match="cannot be read") as caught:
            load_model(described, dtype=Dtype.FLOAT32, device=Device.CPU)
        assert "\n" not in str(caught.value)
