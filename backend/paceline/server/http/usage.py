"""Token counts in the form of chat and completions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline_protocol.responses import Response


def usage_of(responses: Sequence[Response], choices_per_prompt: int = 1) -> dict[str, Any]:
    """Counts of all responses together; a prompt that several choices answer counts once.

    `paceline` is what speculation did for the one response; where there are several,
    `paceline_choices` has theirs in order.
    """
    cached = prompt = completion = reasoning = accepted = drafted = 0
    for index, response in enumerate(responses):
        usage = response.usage
        if usage is None:
            continue
        if index % choices_per_prompt == 0:
            prompt += usage.input_tokens
            cached += usage.input_tokens_details.cached_tokens
        completion += usage.output_tokens
        reasoning += usage.output_tokens_details.reasoning_tokens
        if response.paceline is not None:
            accepted += response.paceline.num_accepted
            drafted += response.paceline.num_drafted
    counts: dict[str, Any] = {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": {
            "reasoning_tokens": reasoning,
            "accepted_prediction_tokens": accepted,
            "rejected_prediction_tokens": drafted - accepted,
        },
    }
    summaries = [response.paceline for response in responses if response.paceline is not None]
    if len(responses) == 1 and summaries:
        counts["paceline"] = summaries[0]
    elif summaries:
        counts["paceline_choices"] = summaries
    return counts
