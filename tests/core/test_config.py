"""Settings: files, flags, ranges, and the decisions made from them."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pytest

from paceline.core.config import (
    Device,
    Dtype,
    EngineConfig,
    Facts,
    ServeConfig,
    check_alone,
    parse_bytes,
    resolve,
)
from paceline.core.errors import ConfigError
from paceline.core.request import DrafterKind

if TYPE_CHECKING:
    from pathlib import Path

FACTS = Facts(
    has_cuda=False,
    has_fast_bfloat16=True,
    target_dtype=Dtype.FLOAT16,
    target_max_len=8192,
    has_draft_model=False,
    num_cores=8,
)


def test_flags_override_the_file_and_an_absent_flag_does_not(tmp_path: Path) -> None:
    path = tmp_path / "serve.toml"
    path.write_text(
        'target = "folder"\nport = 9000\nkv_memory = "2GiB"\nallowed_origins = ["https://a.org"]\n'
        'drafter = "ngram"\ngrace_period_s = 5\n'
    )
    config = ServeConfig.load(path, {"port": 9001, "target": None, "log_prompts": True})
    assert config.target == "folder"
    assert config.port == 9001
    assert config.kv_memory == 2 << 30
    assert config.allowed_origins == ("https://a.org",)
    assert config.drafter is DrafterKind.NGRAM
    assert config.grace_period_s == 5
    assert config.log_prompts


def test_every_field_takes_its_own_default_as_a_plain_value() -> None:
    """Every declared type has a conversion, so no field is out of reach of a file."""
    defaults = dataclasses.asdict(ServeConfig())
    given = {name: value for name, value in defaults.items() if value is not None}
    assert ServeConfig.of(given) == ServeConfig()


@pytest.mark.parametrize(
    ("values", "field", "words"),
    [
        ({"max_model_length": 10}, "max_model_length", "did you mean max_model_len?"),
        ({"kv-memory": 10}, "kv-memory", "did you mean kv_memory?"),
        ({"qqqq": 1}, "qqqq", "known: target"),
        ({"port": "80"}, "port", "a whole number"),
        ({"port": True}, "port", "a whole number"),
        ({"port": 65536}, "port", "from 0 to 65535"),
        ({"log_prompts": 1}, "log_prompts", "true or false"),
        ({"device": "tpu"}, "device", "auto, cpu, cuda"),
        ({"dtype": "int4"}, "dtype", "auto, float32, bfloat16, float16"),
        ({"drafter": "magic"}, "drafter", "auto, model, ngram, none"),
        ({"num_speculative_tokens": 17}, "num_speculative_tokens", "from 0 to 16"),
        ({"min_acceptance": 1.5}, "min_acceptance", "from 0"),
        ({"max_sequences": 0}, "max_sequences", "from 1 to 4096"),
        ({"block_size": 24}, "block_size", "power of two"),
        ({"kv_memory": "2 apples"}, "kv_memory", "like 512MiB"),
        ({"kv_memory": 0}, "kv_memory", "from 1"),
        ({"allowed_origins": "https://a.org"}, "allowed_origins", "a list"),
        ({"allowed_origins": [1]}, "allowed_origins", "a list"),
        ({"allowed_origins": ["https://a.org/chat"]}, "allowed_origins", "an origin is"),
        ({"api_key": ""}, "api_key", "empty"),
        ({"log_level": "loud"}, "log_level", "debug, info, warning, error"),
        ({"send_deadline_s": 0.0}, "send_deadline_s", "from 0.1"),
        ({"send_deadline_s": float("nan")}, "send_deadline_s", "from 0.1"),
    ],
)
def test_a_wrong_setting_is_named(values: dict[str, Any], field: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ServeConfig.of(values)
    assert caught.value.field == field
    assert field in str(caught.value)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.toml cannot be read"):
        ServeConfig.load(tmp_path / "none.toml", {})
    broken = tmp_path / "broken.toml"
    broken.write_text("port = = 3")
    with pytest.raises(ConfigError, match=r"broken\.toml is not valid TOML"):
        ServeConfig.load(broken, {})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("prot = 1", "unknown setting 'prot'; did you mean port?"),
        ('port = "80"', "port is '80'; it must be a whole number"),
        ("port = 65536", "port is 65536; it must be from 0 to 65535"),
        ('kv_memory = "much"', "kv_memory is 'much'"),
        ("[serve]\nport = 1", "holds a table, [serve]: there are no tables, write the keys at"),
        ("port = 1\n[[serve]]\nport = 1", "holds a table, [serve]"),
        ("[port]\nnumber = 1", "holds a table, [port]"),
        ("serve.port = 1", "holds a table, [serve]"),
    ],
)
def test_what_is_wrong_in_a_file_names_the_file(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "serve.toml"
    path.write_text(text)
    # A flag that overrides the value does not hide that the file is wrong.
    overrides: list[dict[str, Any]] = [{}, {"port": 1}]
    for flags in overrides:
        with pytest.raises(ConfigError) as caught:
            ServeConfig.load(path, flags)
        assert str(caught.value).startswith(str(path))
        assert words in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_wrong_flag_does_not_name_the_file(tmp_path: Path) -> None:
    path = tmp_path / "serve.toml"
    path.write_text("port = 1")
    with pytest.raises(ConfigError, match=r"^port is 65536"):
        ServeConfig.load(path, {"port": 65536})


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1024", 1024), ("2GiB", 2 << 30), ("1.5 kib", 1536), ("3MB", 3_000_000), ("7b", 7)],
)
def test_sizes(text: str, expected: int) -> None:
    assert parse_bytes(text, "kv_memory") == expected


def test_resolve_decides_everything() -> None:
    decided = resolve(ServeConfig(), FACTS)
    assert decided == EngineConfig(
        device=Device.CPU,
        dtype=Dtype.BFLOAT16,
        drafter=DrafterKind.AUTO,
        num_speculative_tokens=16,
        max_model_len=8192,
        max_sequences=32,
        token_budget=256,
        block_size=16,
        max_queued=256,
        threads=7,
        fast_path=True,
    )


def test_resolve_goes_by_the_machine() -> None:
    slow = resolve(ServeConfig(), dataclasses.replace(FACTS, has_fast_bfloat16=False))
    assert slow.dtype is Dtype.FLOAT32
    cuda = resolve(ServeConfig(), dataclasses.replace(FACTS, has_cuda=True))
    assert (cuda.device, cuda.dtype, cuda.token_budget) == (Device.CUDA, Dtype.FLOAT16, 2048)
    asked = resolve(
        ServeConfig(device=Device.CPU, dtype=Dtype.FLOAT32, max_model_len=100, token_budget=77),
        dataclasses.replace(FACTS, has_cuda=True),
    )
    assert (asked.device, asked.dtype) == (Device.CPU, Dtype.FLOAT32)
    assert (asked.max_model_len, asked.token_budget) == (100, 77)
    assert resolve(ServeConfig(max_sequences=300), FACTS).token_budget == 300
    assert resolve(ServeConfig(), dataclasses.replace(FACTS, num_cores=2)).threads == 2
    assert resolve(ServeConfig(threads=3), FACTS).threads == 3
    none = resolve(ServeConfig(drafter=DrafterKind.NONE), FACTS)
    assert none.num_speculative_tokens == 0


@pytest.mark.parametrize(
    ("config", "field"),
    [
        (ServeConfig(device=Device.CUDA), "device"),
        (ServeConfig(max_model_len=8193), "max_model_len"),
        (ServeConfig(drafter=DrafterKind.MODEL), "draft"),
        (ServeConfig(token_budget=31), "token_budget"),
    ],
)
def test_resolve_refuses_what_cannot_be(config: ServeConfig, field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(config, FACTS)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("config", "field"),
    [
        (ServeConfig(token_budget=31), "token_budget"),
        (ServeConfig(cuda_graphs=True, device=Device.CPU), "cuda_graphs"),
        (ServeConfig(drafter=DrafterKind.MODEL, target="folder"), "draft"),
    ],
)
def test_settings_that_contradict_each_other_need_no_facts(config: ServeConfig, field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_alone(config)
    assert caught.value.field == field


def test_what_facts_decide_is_not_refused_before_them() -> None:
    check_alone(ServeConfig(cuda_graphs=True))
    check_alone(ServeConfig(device=Device.CUDA, cuda_graphs=True))
    check_alone(ServeConfig(drafter=DrafterKind.MODEL))  # the default target has a draft
    check_alone(ServeConfig(max_model_len=8193))
    with pytest.raises(ConfigError, match="the device is cpu"):
        resolve(ServeConfig(cuda_graphs=True), FACTS)


def test_dtype_sizes() -> None:
    assert (Dtype.FLOAT32.num_bytes, Dtype.BFLOAT16.num_bytes, Dtype.FLOAT16.num_bytes) == (4, 2, 2)
    with pytest.raises(ConfigError):
        _ = Dtype.AUTO.num_bytes
