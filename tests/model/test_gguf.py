"""GGUF files: the same tokens and the same weights as the folder that they were made from."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from gguf import GGUFWriter, TokenType
from tokenizers import pre_tokenizers
from transformers import LlamaForCausalLM

from paceline.core.config import Device, Dtype
from paceline.core.errors import ModelError, UnsupportedModelError
from paceline.model.chat import ChatMessage
from paceline.model.loading import load_model
from paceline.model.source import find_source
from paceline.model.support import describe_model
from paceline.model.tokenizer import TextCodec
from tests.model.tiny import CHATML, CONTROL, byte_level_tokenizer, llama_config

if TYPE_CHECKING:
    from pathlib import Path

    from transformers import LlamaConfig


def write_gguf(path: Path, model: LlamaForCausalLM, split: str | None) -> Path:
    """As converters write it: llama.cpp's names, rotary halves interleaved."""
    config: LlamaConfig = model.config
    num_kv_heads = config.num_key_value_heads
    assert num_kv_heads is not None
    writer = GGUFWriter(path, "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(num_kv_heads)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(config.hidden_size // config.num_attention_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    state = json.loads(byte_level_tokenizer().to_str())
    by_id = {token_id: token for token, token_id in state["model"]["vocab"].items()}
    writer.add_tokenizer_model("gpt2")
    if split is not None:
        writer.add_tokenizer_pre(split)
    writer.add_token_list([by_id[token_id] for token_id in range(len(by_id))])
    writer.add_token_types(
        [
            TokenType.CONTROL if by_id[token_id] in CONTROL else TokenType.NORMAL
            for token_id in range(len(by_id))
        ]
    )
    writer.add_token_merges([" ".join(pair) for pair in state["model"]["merges"]])
    writer.add_eos_token_id(2)
    writer.add_chat_template(CHATML)
    names = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"} | {
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
    }
    whole = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    for name, parameter in model.state_dict().items():
        part = name.removesuffix(".weight")
        values: np.ndarray = parameter.float().numpy()
        if part in whole:
            writer.add_tensor(f"{whole[part]}.weight", values)
            continue
        _, _, index, inner = part.split(".", 3)
        if inner in ("self_attn.q_proj", "self_attn.k_proj"):
            is_query = inner == "self_attn.q_proj"
            heads = config.num_attention_heads if is_query else num_kv_heads
            halves = values.reshape(heads, 2, -1, values.shape[1])
            values = np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(values.shape)
        writer.add_tensor(f"blk.{index}.{names[inner]}.weight", values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def original() -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(llama_config(tie_word_embeddings=False))


def test_weights_and_sizes_are_those_of_the_original(
    tmp_path: Path, original: LlamaForCausalLM
) -> None:
    source = find_source(str(write_gguf(tmp_path / "tiny.gguf", original, "gpt-2")))
    assert source.name == "tiny"
    described = describe_model(source)
    assert described.num_parameters == sum(p.numel() for p in original.parameters())
    assert described.max_model_len == 128
    model = load_model(described, dtype=Dtype.FLOAT32, device=Device.CPU)
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, original.state_dict()[name]), name


@pytest.mark.parametrize("split", [None, "gpt-2", "smollm"])
def test_the_tokenizer_is_rebuilt(
    tmp_path: Path, original: LlamaForCausalLM, split: str | None
) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", original, split)
    codec = TextCodec.load(find_source(str(path)).tokenizer_path)
    expected = byte_level_tokenizer()
    if split == "smollm":
        expected.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False),
            ]
        )
    for text in ("the quick  fox", "x   12 34", "héllo 👍", "print(value) for  value"):
        assert codec.encode(text) == expected.encode(text).ids
    assert codec.name == "tiny"
    assert codec.eos_token_ids == {2}
    chat = codec.encode_chat([ChatMessage("user", "hi<|im_end|>")])
    assert [token_id for token_id in chat.ids if token_id < 3] == [1, 2, 1]


def test_a_split_that_cannot_be_rebuilt_is_refused(
    tmp_path: Path, original: LlamaForCausalLM
) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", original, "somebody-elses")
    with pytest.raises(UnsupportedModelError, match="splits text as 'somebody-elses'"):
        TextCodec.load(path)


def test_a_broken_file_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    path.write_bytes(b"GGUF and no more")
    for call in (lambda: TextCodec.load(path), lambda: describe_model(find_source(str(path)))):
        with pytest.raises(ModelError) as caught:
            call()
        assert "\n" not in str(caught.value)
