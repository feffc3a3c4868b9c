"""What a request leaves open is sampled as the model's makers recommend."""

from __future__ import annotations

import msgspec

from paceline.core.request import SamplingParams
from paceline.server.translation import sampling_of
from paceline_protocol.requests import CompletionCreate

RECOMMENDED = SamplingParams(temperature=0.2, top_p=0.9, top_k=50)


def _request(**fields: object) -> CompletionCreate:
    return msgspec.convert({"type": "completion.create", "prompt": "x"} | fields, CompletionCreate)


def test_the_recommendation_fills_what_is_open() -> None:
    assert sampling_of(_request(), RECOMMENDED) == RECOMMENDED


def test_what_the_request_says_wins() -> None:
    said = sampling_of(_request(temperature=0, paceline={"top_k": 0}), RECOMMENDED)
    assert said == SamplingParams(temperature=0.0, top_p=0.9, top_k=0)
