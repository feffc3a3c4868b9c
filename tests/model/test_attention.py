"""Packed attention over paged K/V against transformers' own, sequence by sequence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from paceline.core.errors import UnsupportedModelError
from paceline.model.attention import ATTENTION_NAME, ragged_attention
from paceline.model.attention_cpu import plan_groups
from paceline.model.batch import Segment, pack
from paceline.model.runner import ModelRunner
from tests.model.attention_models import (
    VOCABULARY_SIZE,
    attention_model,
    kv_layers,
    plain_varlen,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor
    from transformers import PreTrainedModel

    from paceline.model.attention_cuda import VarlenKernel

BLOCK_SIZE = 4
NAMES = ["llama", "qwen3", "mistral", "gemma", "gemma3", "gpt2"]
# Lengths computed in each step, for each of four sequences: whole prompts, chunks of a prompt,
# decodes and verifications of several tokens side by side; a sequence may sit a step out.
SCHEDULE = [
    (11, 3, 17, 0),
    (1, 5, 9, 2),
    (4, 1, 1, 13),
    (1, 1, 6, 1),
    (0, 1, 1, 5),
]
TABLES = [[9, 2, 14, 5, 0], [3, 1, 11], [4, 13, 6, 8, 12, 7, 10, 15, 16], [17, 18, 21, 19, 20, 22]]


class Conversation:
    """Random sequences, computed step by step in packed batches."""

    def __init__(self, model: PreTrainedModel, kernel: VarlenKernel | None) -> None:
        generator = torch.Generator().manual_seed(5)
        totals = [sum(step[index] for step in SCHEDULE) for index in range(4)]
        self.ids = [
            torch.randint(VOCABULARY_SIZE, (total,), generator=generator).tolist()
            for total in totals
        ]
        self.expected = [self._reference(model, ids) for ids in self.ids]
        model.set_attn_implementation(ATTENTION_NAME)
        self.runner = ModelRunner(model, kv_layers(model, 23, BLOCK_SIZE), kernel=kernel)
        self.computed = [0] * 4

    @staticmethod
    @torch.inference_mode()
    def _reference(model: PreTrainedModel, ids: list[int]) -> Tensor:
        logits: Tensor = model(input_ids=torch.tensor([ids]), use_cache=False).logits
        return logits[0]

    def step(self, counts: Sequence[int], *, replace: dict[int, list[int]] | None = None) -> None:
        """Compute and compare. replace: other ids for a sequence's last tokens, as a draft that
        will be rejected has; those rows are not compared."""
        segments, expected = [], []
        for index, count in enumerate(counts):
            if count == 0:
                continue
            start = self.computed[index]
            ids = self.ids[index][start : start + count]
            wrong = (replace or {}).get(index, [])
            kept = count - len(wrong)
            segments.append(Segment(ids[:kept] + wrong, start, TABLES[index], count))
            rows = self.expected[index][start : start + kept]
            expected.append(torch.cat((rows, torch.full((len(wrong), rows.shape[1]), torch.nan))))
            self.computed[index] += kept
        logits = self.runner.forward(pack(segments, BLOCK_SIZE)).logits
        want = torch.cat(expected)
        is_compared = ~want.isnan()
        # float32 on both sides; only the order of sums differs.
        torch.testing.assert_close(
            logits[is_compared],
            want[is_compared],
            rtol=1e-4,
            atol=1e-4 * float(want[is_compared].std()),
        )


@pytest.mark.parametrize("kernel", [None, plain_varlen], ids=["cpu", "varlen"])
@pytest.mark.parametrize("name", NAMES)
def test_mixed_steps_give_what_each_sequence_gives_alone(
    name: str, kernel: VarlenKernel | None
) -> None:
    conversation = Conversation(attention_model(name), kernel)
    for counts in SCHEDULE:
        conversation.step(counts)


@pytest.mark.parametrize("kernel", [None, plain_varlen], ids=["cpu", "varlen"])
@pytest.mark.parametrize("name", ["llama", "mistral"])
def test_rejected_rows_leave_no_trace(name: str, kernel: VarlenKernel | None) -> None:
    conversation = Conversation(attention_model(name), kernel)
    conversation.step((9, 3, 17, 2))
    conversation.step((5, 1, 4, 3), replace={0: [1, 2, 3, 4], 2: [7], 3: [5, 5, 5]})
    conversation.step((1, 2, 5, 6))
    conversation.step((2, 1, 1, 3))


@pytest.mark.parametrize("feature", ["softcap", "s_aux"])
def test_what_attention_lacks_is_refused(feature: str) -> None:
    rows = torch.zeros(1, 2, 3, 4)
    options: dict[str, Any] = {feature: 1.0}
    with pytest.raises(UnsupportedModelError, match=feature):
        ragged_attention(torch.nn.Module(), rows, rows, rows, None, **options)


def test_a_mask_or_a_missing_context_is_refused() -> None:
    rows = torch.zeros(1, 2, 3, 4)
    with pytest.raises(UnsupportedModelError, match="context"):
        ragged_attention(torch.nn.Module(), rows, rows, rows, None)
    with pytest.raises(UnsupportedModelError, match="mask"):
        ragged_attention(torch.nn.Module(), rows, rows, rows, torch.zeros(3, 3))


def test_groups_hold_every_segment_once_and_keep_a_prefill_from_padding_decodes() -> None:
    groups = plan_groups([1, 1, 300, 1, 5], [100, 120, 300, 90, 110])
    assert sorted(index for group in groups for index in group) == [0, 1, 2, 3, 4]
    assert [2] in groups
    assert any({0, 1, 3} <= set(group) for group in groups)


@pytest.mark.gpu
@pytest.mark.parametrize("window", [None, 40])
def test_the_real_kernel_computes_what_the_plain_one_does(window: int | None) -> None:
    from paceline.model.attention_cuda import VarlenInputs, VarlenPagedAttention, varlen_kernel

    device = torch.device("cuda")
    generator = torch.Generator().manual_seed(0)
    segments = [
        Segment([1] * 7, 60, [5, 2, 9, 7, 1], 1),
        Segment([1], 30, [3, 6], 1),
        Segment([1] * 20, 0, [8, 4], 1),
    ]
    batch = pack(segments, 16)
    rows = batch.num_tokens
    layer = torch.randn(2, 10, 16, 2, 64, generator=generator).to(device, torch.bfloat16)
    query = torch.randn(rows, 6, 64, generator=generator).to(device, torch.bfloat16)
    key, value = torch.randn(2, rows, 2, 64, generator=generator).to(device, torch.bfloat16)
    inputs = VarlenInputs.of(batch, device)
    contexts = [
        VarlenPagedAttention(inputs, [layer.clone()], kernel)
        for kernel in (varlen_kernel(), plain_varlen)
    ]
    real, plain = (c.attend(0, query, key, value, 0.125, window) for c in contexts)
    torch.testing.assert_close(real, plain, rtol=2e-2, atol=2e-2)
