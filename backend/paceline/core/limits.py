"""What one engine can hold, and the check of a request against it before it enters the queue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from paceline.core.errors import ContextLengthError, RequestError

if TYPE_CHECKING:
    from paceline.core.request import Request


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """Fixed once the engine is built.

    max_model_len: tokens of prompt and output together that the target's positions allow.
    num_blocks, block_size: the K/V pool; block_size tokens per block.
    max_sequences: sequences computed in one step. max_waiting: requests that may queue.
    vocabulary_size: token ids are below it.
    """

    max_model_len: int
    num_blocks: int
    block_size: int
    max_sequences: int
    max_waiting: int
    vocabulary_size: int

    @property
    def max_pool_tokens(self) -> int:
        return self.num_blocks * self.block_size

    @property
    def max_sequence_tokens(self) -> int:
        """Tokens (prompt and output) at which any sequence ends."""
        return min(self.max_model_len, self.max_pool_tokens)

    def check(self, request: Request) -> None:
        """Refuse what can never be served.

        Raises:
            ContextLengthError: the prompt leaves no room for one new token.
            RequestError: a token id is outside the vocabulary; the message holds both numbers.
        """
        num_prompt = len(request.prompt_ids)
        if num_prompt >= self.max_model_len:
            raise ContextLengthError(
                f"the prompt has {num_prompt} tokens; the model's context holds "
                f"{self.max_model_len}, and at least one must be left for the answer",
                field="input",
            )
        if num_prompt >= self.max_pool_tokens:
            raise ContextLengthError(
                f"the prompt has {num_prompt} tokens; the K/V memory of this server holds "
                f"{self.max_pool_tokens}, and at least one must be left for the answer",
                field="input",
            )
        if len(set(request.sampling.banned_token_ids)) >= self.vocabulary_size:
            raise RequestError(
                "banned_token_ids holds every id of the vocabulary; at least one must be left",
                field="banned_token_ids",
            )
        named = (
            ("input", request.prompt_ids),
            ("stop_token_ids", request.stop_token_ids),
            ("banned_token_ids", request.sampling.banned_token_ids),
            ("logit_bias", tuple(token_id for token_id, _ in request.sampling.logit_bias)),
        )
        for field, token_ids in named:
            if not token_ids:
                continue
            lowest, highest = min(token_ids), max(token_ids)
            if lowest < 0 or highest >= self.vocabulary_size:
                wrong = lowest if lowest < 0 else highest
                raise RequestError(
                    f"{field} holds the token id {wrong}; ids go from 0 to "
                    f"{self.vocabulary_size - 1}",
                    field=field,
                )
