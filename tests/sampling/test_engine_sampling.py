"""Sampling through a whole tiny engine: log-probabilities, mixed batches, broken rows, bans."""

from __future__ import annotations

import copy
import math
from typing import TYPE_CHECKING

import pytest
import torch

from paceline.core.events import CommittedToken, FinishEvent, FinishReason, TokenEvent
from paceline.core.request import DrafterKind, Request, SamplingParams, Speculation
from paceline.model.runner import ForwardOutput
from tests.tiny_models import Outputs, run_to_end, tiny_engine, tiny_llama

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM

    from paceline.engine.engine import Engine
    from paceline.model.batch import PackedBatch

PROMPT = (3, 1, 4, 1, 5)


def engine() -> Engine:
    target = tiny_llama(0)
    draft = copy.deepcopy(target)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in draft.parameters():
            weight.add_(torch.randn(weight.shape, generator=generator) * weight.std() * 0.1)
    return tiny_engine(target, draft, drafter=DrafterKind.MODEL)


def reference_logprobs(ids: list[int]) -> torch.Tensor:
    """Of the token after each prefix, by transformers alone."""
    model: LlamaForCausalLM = tiny_llama(0)
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0]
    return torch.log_softmax(logits.double(), -1)


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0.5, top_k=7, top_logprobs=3),
        SamplingParams(temperature=0, top_logprobs=0),
        SamplingParams(seed=4, repetition_penalty=1.4, top_logprobs=20),
    ],
    ids=str,
)
def test_log_probabilities_of_every_emitted_token(params: SamplingParams) -> None:
    """Accepted, recovered and bonus tokens alike, before temperature, cuts and penalties."""
    served = engine()
    served.submit(Request("r", PROMPT, 30, params, speculation=Speculation.ON))
    served.submit(Request("other", PROMPT, 30))
    tokens: list[CommittedToken] = []
    while served.has_work:
        for event in served.step().events:
            if isinstance(event, TokenEvent) and event.request_id == "r":
                tokens += event.tokens
            elif isinstance(event, TokenEvent):
                assert all(token.logprob is None for token in event.tokens)
    assert {token.source.value for token in tokens} >= {"accepted", "plain"}
    rows = reference_logprobs([*PROMPT, *(token.token_id for token in tokens)])
    for place, token in enumerate(tokens):
        row = rows[len(PROMPT) - 1 + place]
        assert token.logprob is not None
        assert token.logprob.logprob == pytest.approx(float(row[token.token_id]), abs=1e-3)
        assert len(token.logprob.top) == params.top_logprobs
        expected = row.topk(max(1, params.top_logprobs or 0)).values.tolist()
        for (token_id, logprob), best in zip(token.logprob.top, expected, strict=False):
            assert logprob == pytest.approx(best, abs=1e-3)
            assert logprob == pytest.approx(float(row[token_id]), abs=1e-3)


def test_banned_tokens_never_appear_and_biases_pull() -> None:
    served = engine()
    banned = tuple(range(10, 64))
    pulled = SamplingParams(banned_token_ids=banned, logit_bias=((7, 100.0),))
    served.submit(Request("banned", PROMPT, 40, SamplingParams(banned_token_ids=banned)))
    served.submit(Request("pulled", PROMPT, 40, pulled, speculation=Speculation.ON))
    outputs = run_to_end(served)
    assert max(outputs.tokens["banned"]) < 10
    assert set(outputs.tokens["pulled"]) == {7}


def test_stop_tokens_wait_for_the_minimum_length() -> None:
    """Even where the stop token would be certain."""
    served = engine()
    for minimum in (0, 1, 5, 12):
        params = SamplingParams(temperature=0, min_tokens=minimum, logit_bias=((9, 100.0),))
        served.submit(
            Request(
                f"r{minimum}",
                PROMPT,
                40,
                params,
                stop_token_ids=frozenset({9}),
                speculation=Speculation.ON,
            )
        )
    outputs = run_to_end(served)
    for minimum in (0, 1, 5, 12):
        tokens = outputs.tokens[f"r{minimum}"]
        assert outputs.finished[f"r{minimum}"].reason is FinishReason.STOP
        assert tokens.index(9) == len(tokens) - 1 == minimum


def test_everything_banned_is_an_error_not_a_token() -> None:
    served = engine()
    # What is not banned would stop the answer before its least length.
    params = SamplingParams(banned_token_ids=tuple(range(1, 64)), min_tokens=3)
    served.submit(Request("r", PROMPT, 5, params, stop_token_ids=frozenset({0})))
    served.submit(Request("other", PROMPT, 5))
    outputs = run_to_end(served)
    assert outputs.finished["r"].reason is FinishReason.ERROR
    assert outputs.finished["r"].error_code == "NonFiniteLogitsError"
    assert outputs.finished["other"].reason is FinishReason.LENGTH


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("all", math.nan),
        ("all", math.inf),
        ("all", -math.inf),
        ("one", math.nan),
        ("one", math.inf),
    ],
)
def test_a_broken_row_fails_its_sequence_alone(place: str, value: float) -> None:
    """NaN and infinity in one sequence's rows, in its first round with drafts."""
    served = engine()
    runner = served._verifier._runner
    forward = runner.forward
    broken: list[str] = []

    def break_last(batch: PackedBatch) -> ForwardOutput:
        output = forward(batch)
        last = int(batch.query_lengths[-1])
        if broken or len(batch.query_lengths) < 4 or len(output.logits) == 4 or last == 1:
            return output
        logits = output.logits.clone()
        logits[len(logits) - last + 1, slice(None) if place == "all" else slice(5, 6)] = value
        broken.append("yes")
        return ForwardOutput(logits)

    runner.forward = break_last  # type: ignore[method-assign]
    kinds = [
        SamplingParams(temperature=0, top_logprobs=2),
        SamplingParams(seed=1, top_p=0.9),
        SamplingParams(top_k=5, presence_penalty=0.1),
        SamplingParams(top_logprobs=4),
    ]
    for index, params in enumerate(kinds):
        served.submit(Request(f"r{index}", PROMPT, 12, params, speculation=Speculation.ON))
    outputs = Outputs()
    while served.has_work:
        outputs.add(served.step().events)
    assert broken
    reasons = [outputs.finished[f"r{index}"].reason for index in range(4)]
    assert reasons == [FinishReason.LENGTH] * 3 + [FinishReason.ERROR]
    finish: FinishEvent = outputs.finished["r3"]
    assert finish.error_code == "NonFiniteLogitsError"


def test_a_mixed_batch_gives_greedy_and_seeded_rows_what_they_get_alone() -> None:
    kinds = {
        "greedy": SamplingParams(temperature=0),
        "seeded": SamplingParams(seed=3),
        "seeded and cut": SamplingParams(seed=4, top_k=9, top_p=0.8),
        "seeded, penalties": SamplingParams(seed=5, frequency_penalty=0.7),
    }
    alone = {}
    for name, params in kinds.items():
        served = engine()
        served.submit(Request(name, PROMPT, 25, params, speculation=Speculation.ON))
        alone[name] = run_to_end(served).tokens[name]
    served = engine()
    for name, params in kinds.items():
        served.submit(Request(name, PROMPT, 25, params, speculation=Speculation.ON))
    served.submit(Request("sampled", PROMPT, 25, SamplingParams(), speculation=Speculation.ON))
    cut = SamplingParams(top_p=0.7, min_p=0.01)
    served.submit(Request("sampled and cut", PROMPT, 25, cut, speculation=Speculation.ON))
    together = run_to_end(served).tokens
    assert {name: together[name] for name in kinds} == alone
