"""Times and memory against numbers worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from paceline.core.errors import ConfigError
from paceline.planning.devices import (
    DEVICES,
    GIB,
    Efficiency,
    device_from_numbers,
    find_device,
)
from paceline.planning.known_models import KNOWN_MODELS
from paceline.planning.measure import Measurement, device_from, measure_this_machine
from paceline.planning.memory import plan_memory
from paceline.planning.precision import PRECISIONS, find_kv_bytes, find_precision
from paceline.planning.roofline import PlacedModel
from paceline.planning.shape import one_layer_head

BF16, FP8, INT4 = PRECISIONS["bf16"], PRECISIONS["fp8"], PRECISIONS["int4"]
LLAMA_8B, LLAMA_70B = KNOWN_MODELS["llama-3.1-8b"], KNOWN_MODELS["llama-3.1-70b"]
IDEAL = Efficiency(bandwidth=1.0, compute=1.0, layer_us=0.0, pass_us=0.0)
H100 = replace(DEVICES["h100-sxm"], efficiency=IDEAL)


def test_one_token_is_one_read_of_the_weights() -> None:
    cost = PlacedModel(LLAMA_8B, BF16, H100).pass_cost(1, 1, 1)
    assert cost.seconds == pytest.approx(7_504_924_672 * 2 / 3.35e12, rel=1e-3)
    assert not cost.compute_bound


def test_many_tokens_are_arithmetic() -> None:
    cost = PlacedModel(LLAMA_8B, BF16, H100).pass_cost(4096, 1, 1)
    assert cost.compute_bound
    assert cost.linear_compute == pytest.approx(2 * 4096 * 7_504_924_672 / 989e12)


def test_the_knee_lies_where_bytes_and_operations_meet() -> None:
    model = PlacedModel(LLAMA_8B, BF16, H100)
    knee = 989e12 * 2 / (2 * 3.35e12)  # 295 rows
    assert not model.pass_cost(int(knee), 1, 1).compute_bound
    assert model.pass_cost(int(knee) + 1, 1, 1).compute_bound


def test_kv_is_read_once_for_all_rows_of_a_sequence() -> None:
    model = PlacedModel(LLAMA_8B, BF16, H100)
    one, five = model.pass_cost(1, 1, 8192), model.pass_cost(5, 1, 8192)
    assert one.kv_bytes == five.kv_bytes == 8192 * 32 * 8 * 128 * 2 * 2
    assert model.pass_cost(2, 2, 8192).kv_bytes == 2 * one.kv_bytes


def test_attention_of_a_long_prompt_is_arithmetic() -> None:
    cost = PlacedModel(LLAMA_8B, BF16, H100).pass_cost(8192, 1, 4096)
    assert cost.attention_compute == pytest.approx(4 * 8192 * 4096 * 32 * 128 * 32 / 989e12)
    assert cost.attention_compute > cost.attention_memory


def test_checkpoints_have_their_published_size() -> None:
    """AWQ and FP8 checkpoints of the 70B: 39.8 and 72.7 GB, embedding and head in 16 bits."""
    sizes = {
        precision.name: PlacedModel(LLAMA_70B, precision, H100).stored_bytes / 1e9
        for precision in (BF16, FP8, INT4)
    }
    assert sizes["bf16"] == pytest.approx(141.1, abs=0.05)
    assert sizes["fp8"] == pytest.approx(72.7, abs=0.05)
    assert sizes["int4"] == pytest.approx(39.8, abs=0.05)


def test_fp8_runs_faster_only_where_the_device_can() -> None:
    def compute(device: str, precision: str) -> float:
        placed = PlacedModel(LLAMA_8B, PRECISIONS[precision], DEVICES[device])
        return placed.pass_cost(4096, 1, 1).linear_compute

    assert compute("h100-sxm", "fp8") == pytest.approx(compute("h100-sxm", "bf16") * 989 / 1979)
    assert compute("a100-80", "fp8") == compute("a100-80", "bf16")
    assert compute("h100-sxm", "int4") == compute("h100-sxm", "bf16")


def test_tensor_parallelism_splits_weights_and_kv_and_pays_for_sums() -> None:
    one, four = (PlacedModel(LLAMA_70B, BF16, H100, count) for count in (1, 4))
    assert four.stored_bytes_per_device == pytest.approx(one.stored_bytes / 4)
    assert four.kv_bytes_per_token_per_device == one.kv_bytes_per_token / 4
    assert one.pass_cost(1, 1, 1).allreduce == 0.0
    # 2 a layer, 10 us each, and 1.5 x 16 KiB through 450 GB/s
    expected = 160 * (10e-6 + 1.5 * 8192 * 2 / 450e9)
    assert four.pass_cost(1, 1, 1).allreduce == pytest.approx(expected)


def test_kv_heads_repeat_beyond_their_number() -> None:
    sixteen = PlacedModel(LLAMA_70B, BF16, H100, 16)
    assert sixteen.kv_bytes_per_token_per_device == sixteen.kv_bytes_per_token / 8


def test_heads_that_do_not_divide_are_refused() -> None:
    with pytest.raises(ConfigError, match="9 attention heads"):
        PlacedModel(KNOWN_MODELS["smollm2-135m"], BF16, H100, 2)
    with pytest.raises(ConfigError, match="at least 1"):
        PlacedModel(LLAMA_8B, BF16, H100, 0)


def test_experts_make_verification_dear() -> None:
    mixtral = PlacedModel(KNOWN_MODELS["mixtral-8x7b"], BF16, H100)
    dense = PlacedModel(LLAMA_8B, BF16, H100)
    grows = mixtral.pass_cost(5, 1, 1).seconds / mixtral.pass_cost(1, 1, 1).seconds
    assert grows > 2.0
    assert dense.pass_cost(5, 1, 1).seconds / dense.pass_cost(1, 1, 1).seconds < 1.01
    # With many sequences every expert is read anyway, and the penalty is gone.
    busy = mixtral.pass_cost(160, 32, 1).linear_memory / mixtral.pass_cost(32, 32, 1).linear_memory
    assert busy < 1.01


def test_predicted_step_of_the_cpu_that_was_measured() -> None:
    """SmolLM2-135M in bf16 on 2 AVX-512 cores, 28 GB/s: 24 to 29 ms, hand-fused eager."""
    device = device_from(
        Measurement(read_gb_s=28.0, gflops=75.0, memory_gib=24.0, threads=2, bf16_factor=2.0)
    )
    model = PlacedModel(KNOWN_MODELS["smollm2-135m"], BF16, device)
    assert 0.020 < model.decode_seconds(1, 100) < 0.030
    assert model.pass_cost(4, 1, 100).seconds < 1.05 * model.decode_seconds(1, 100)


# ------------------------------------------------------------------ memory


def test_memory_of_the_seventy_on_one_card() -> None:
    target = PlacedModel(LLAMA_70B, BF16, DEVICES["h100-sxm"])
    draft = PlacedModel(LLAMA_8B, BF16, DEVICES["h100-sxm"])
    memory = plan_memory(target, draft, 2048, 0.9)
    assert memory.usable_bytes == pytest.approx(0.9 * 80 * GIB)
    assert not memory.target_fits
    assert not memory.pair_fits
    assert memory.devices_needed == 4
    assert memory.precision_that_fits == "int4"


def test_a_draft_takes_weights_and_kv() -> None:
    device = DEVICES["h100-sxm"]
    target = PlacedModel(LLAMA_8B, BF16, device)
    draft = PlacedModel(KNOWN_MODELS["llama-3.2-1b"], BF16, device)
    memory = plan_memory(target, draft, 4096, 0.9)
    room = 0.9 * 80 * GIB - 8_030_261_248 * 2
    assert memory.kv_tokens_plain == int(room / 131_072)
    assert memory.kv_tokens_with_draft == int((room - 1_235_814_400 * 2) / (131_072 + 32_768))
    assert memory.sessions_with_draft < memory.sessions_plain
    assert plan_memory(target, None, 4096, 0.9).kv_tokens_with_draft == memory.kv_tokens_plain


def test_a_head_shares_the_embedding() -> None:
    head = one_layer_head(LLAMA_8B, 32000)
    placed = PlacedModel(head, BF16, DEVICES["h100-sxm"])
    assert placed.stored_bytes == head.total_params * 2
    assert head.total_params < LLAMA_8B.embedding_params


# ------------------------------------------------------------------ devices and formats


def test_device_table_is_complete_and_sane() -> None:
    wanted = {
        *("h100-sxm", "h100-pcie", "h200", "b200", "a100-80", "a100-40", "l40s", "l4", "a10g"),
        *("rtx4090", "rtx5090", "mi300x", "mi325x"),
    }
    assert set(DEVICES) == wanted
    for device in DEVICES.values():
        assert 100 <= device.bandwidth_gb_s <= 10_000
        assert device.fp8_tflops == 0 or 1.9 < device.fp8_tflops / device.bf16_tflops < 2.1
        assert device.source


def test_devices_are_found_by_name_alias_or_numbers() -> None:
    assert find_device("H100") is DEVICES["h100-sxm"]
    assert find_device("RTX4090") is DEVICES["rtx4090"]
    given = device_from_numbers("bandwidth=28,tflops=0.15,memory=24")
    assert given.bytes_per_second == pytest.approx(28e9 * 0.8)
    assert find_device("bandwidth=28,tflops=0.15,memory=24") == given
    for text in ("bandwidth=28", "bandwidth=x,tflops=1,memory=1", "speed=3"):
        with pytest.raises(ConfigError):
            find_device(text)
    with pytest.raises(ConfigError, match="this-machine"):
        find_device("h9000")


@pytest.mark.parametrize(
    "field", [{"bandwidth": 0.0}, {"compute": 1.5}, {"layer_us": -1.0}, {"pass_us": -1.0}]
)
def test_efficiencies_are_checked(field: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        Efficiency(**field)


def test_formats_by_name() -> None:
    assert find_precision("FP16") is BF16
    assert find_precision("awq") is INT4
    assert find_kv_bytes("fp8") == 1
    with pytest.raises(ConfigError, match="known"):
        find_precision("fp3")
    with pytest.raises(ConfigError, match="known"):
        find_kv_bytes("int4")


def test_measuring_this_machine_gives_a_usable_device() -> None:
    """Says nothing about how fast it is, only that the figures are possible ones."""
    measurement = measure_this_machine()
    assert 0.1 < measurement.read_gb_s < 5_000
    assert 0.1 < measurement.gflops < 1e6
    assert measurement.bf16_factor in {1.0, 2.0, 4.0}
    device = device_from(measurement)
    assert device.memory_bytes > 0
    assert PlacedModel(KNOWN_MODELS["smollm2-135m"], BF16, device).decode_seconds(1, 128) > 0
