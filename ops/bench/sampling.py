"""Cost of the acceptance stage as a share of the verification step that it follows.

16 sequences with 4 drafted tokens each on the default target: 80 rows of 49152 logits. The rows are
the target's real ones, inside answers that it has just sampled to 16 chat prompts. The draft's rows
are synthetic (the target's own, disturbed), over the whole vocabulary, and drafted tokens are
sampled from them. Forward pass and acceptance stage take turns in one run, so that both see the
same machine; the ratio of their medians is what counts. The forward pass is the one that `paceline
serve` runs, fast path included.

    python ops/bench/sampling.py [--rounds 20] [--threads N]
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from provenance import write_result

from paceline.cache.kv_tensors import KVShape, KVTensors
from paceline.core.request import Request, SamplingParams
from paceline.engine.drafters.interface import Proposal
from paceline.engine.drafters.next_tokens import next_tokens
from paceline.engine.plan import PlanEntry
from paceline.engine.sequence import Sequence
from paceline.engine.verifier import Scores, Verifier
from paceline.model.batch import Segment, pack
from paceline.model.chat import ChatMessage
from paceline.model.default_weights import ensure_default_target
from paceline.model.fast import speed_up
from paceline.model.loading import load_target
from paceline.model.runner import ModelRunner
from paceline.model.tokenizer import TextCodec
from paceline.sampling.constraints import SamplingConstraint
from paceline.sampling.verification import NoiseKeys, draft_tokens
from paceline.sampling.warping import argmax_lowest

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from paceline.model.batch import PackedBatch

NUM_SEQUENCES = 16
NUM_DRAFTED = 4
NUM_ANSWERED = 48
MAX_TOKENS = 192
BLOCK_SIZE = 16
LIMIT = 0.15

SCENARIOS: dict[str, SamplingParams] = {
    "top-k 50 and top-p 0.95": SamplingParams(top_k=50, top_p=0.95),
    "top-p 0.95 alone": SamplingParams(top_p=0.95),
    "top-p 0.95 alone, temperature 1.5": SamplingParams(temperature=1.5, top_p=0.95),
    "plain temperature": SamplingParams(),
    "min-p 0.05": SamplingParams(min_p=0.05),
    "seeded, plain temperature": SamplingParams(seed=1),
    "seeded, top-k 50 and top-p 0.95": SamplingParams(seed=1, top_k=50, top_p=0.95),
    "penalties, top-k 50 and top-p 0.95": SamplingParams(
        top_k=50, top_p=0.95, repetition_penalty=1.1, presence_penalty=0.2, frequency_penalty=0.2
    ),
    "log-probabilities, top-p 0.95": SamplingParams(top_p=0.95, top_logprobs=5),
    "greedy": SamplingParams(temperature=0),
}

PROMPTS = (
    "What is photosynthesis?",
    "Write a short story about a lighthouse keeper.",
    "How do I boil an egg?",
    "Explain why the sky is blue to a child.",
    "Give me five ideas for a birthday party.",
    "What does HTTP status 404 mean?",
    "Summarise the plot of Romeo and Juliet.",
    "Write a Python function that reverses a list.",
    "What are the benefits of regular exercise?",
    "Describe the water cycle.",
    "How does a bicycle stay upright?",
    "Write a polite email asking for a day off.",
    "What is the difference between a virus and a bacterium?",
    "Name some famous painters and their styles.",
    "How can I learn a new language quickly?",
    "Tell me about the history of bread.",
)


class NoText:
    """Nothing is detokenized here."""

    def append(self, token_id: int) -> str:
        return ""

    def flush(self) -> str:
        return ""


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    arguments.add_argument("--rounds", type=int, default=20)
    arguments.add_argument("--threads", type=int, default=None)
    options = arguments.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    folder = ensure_default_target()
    codec = TextCodec.load(folder)
    runner, vocabulary_size = load_runner(str(folder)), codec.vocabulary_size
    prompts = [
        list(codec.encode_chat([ChatMessage(role="user", content=prompt)]).ids)
        for prompt in PROMPTS
    ]
    batch, known = answer(runner, prompts, vocabulary_size)
    logits = runner.forward(batch).logits[:, :vocabulary_size]
    verifier = Verifier(runner, block_size=BLOCK_SIZE, vocabulary_size=vocabulary_size)
    stages = {
        name: make_stage(verifier, logits, known, params, vocabulary_size)
        for name, params in SCENARIOS.items()
    }
    forward: list[float] = []
    spent: dict[str, list[float]] = {name: [] for name in stages}
    for _ in range(options.rounds):
        for name, stage in stages.items():
            forward.append(timed(lambda: runner.forward(batch)))
            spent[name].append(timed(stage))
    step = statistics.median(forward)
    shares = {name: statistics.median(times) / step for name, times in spent.items()}
    rows: list[dict[str, Any]] = [
        {
            "scenario": name,
            "share": round(share, 4),
            "milliseconds": round(statistics.median(spent[name]) * 1e3, 2),
        }
        for name, share in shares.items()
    ]
    print(f"verification step, {len(logits)} rows: {step * 1e3:.1f} ms")
    for row in rows:
        verdict = "" if row["share"] <= LIMIT else f"  over {LIMIT:.0%}"
        print(
            f"  {row['scenario']:<36} {row['milliseconds']:7.2f} ms  {row['share']:6.1%}{verdict}"
        )
    write_result(
        "sampling",
        f"python ops/bench/sampling.py --rounds {options.rounds}",
        {"step_ms": round(step * 1e3, 2), "threads": torch.get_num_threads(), "stages": rows},
    )


def load_runner(folder: str) -> ModelRunner:
    model = load_target(folder)
    config = model.config
    width = config.hidden_size // config.num_attention_heads
    shape = KVShape(((config.num_key_value_heads, width),) * config.num_hidden_layers, model.dtype)
    num_blocks = NUM_SEQUENCES * (MAX_TOKENS // BLOCK_SIZE)
    kv = KVTensors(shape, num_blocks, BLOCK_SIZE, model.device)
    return ModelRunner(model, kv.layers, decoder=speed_up(model).decoder)


def answer(
    runner: ModelRunner, prompts: list[list[int]], vocabulary_size: int
) -> tuple[PackedBatch, list[list[int]]]:
    """Sample the beginning of an answer to each prompt. Returns the batch that verifies its last
    tokens, with everything before them in the K/V memory, and the tokens before them."""
    size = MAX_TOKENS // BLOCK_SIZE
    tables = [list(range(size * n, size * (n + 1))) for n in range(NUM_SEQUENCES)]
    tokens = [list(prompt) for prompt in prompts]
    starts = [0] * NUM_SEQUENCES
    params = [SamplingParams(top_p=0.95)] * NUM_SEQUENCES
    for step in range(NUM_ANSWERED):
        segments = [
            Segment(ids[start:], start, table, 1)
            for ids, start, table in zip(tokens, starts, tables, strict=True)
        ]
        logits = runner.forward(pack(segments, BLOCK_SIZE)).logits[:, :vocabulary_size]
        starts = [len(ids) for ids in tokens]
        numbers = np.arange(NUM_SEQUENCES)
        keys = NoiseKeys(numbers.astype(np.uint64), np.array(starts), np.full_like(numbers, step))
        drawn = draft_tokens(logits, params, keys, vocabulary_size).token_ids.tolist()
        for ids, token in zip(tokens, drawn, strict=True):
            ids.append(token)
    segments = []
    for ids, table in zip(tokens, tables, strict=True):
        first = len(ids) - NUM_DRAFTED - 1
        segments.append(Segment(ids[first:], first, table, NUM_DRAFTED + 1))
    return pack(segments, BLOCK_SIZE), [ids[:-NUM_DRAFTED] for ids in tokens]


def make_stage(
    verifier: Verifier,
    logits: Tensor,
    prompts: list[list[int]],
    params: SamplingParams,
    vocabulary_size: int,
) -> Callable[[], object]:
    """The whole stage from logits to outcomes on the host, for sequences with these parameters."""
    torch.manual_seed(0)
    sequences = []
    for n, prompt in enumerate(prompts):
        request = Request(f"r{n}", tuple(prompt), 1000, sampling=params)
        constraint = None
        if SamplingConstraint.needed(params):
            constraint = SamplingConstraint(params, prompt, ())
        sequences.append(Sequence(request, NoText(), n, 0.0, constraint))
    drafts: list[list[int]] = [[] for _ in sequences]
    places: list[list[int]] = [[] for _ in sequences]
    rows: list[Tensor] = []
    for step in range(NUM_DRAFTED):
        own = logits[step :: NUM_DRAFTED + 1].to(torch.float32)
        own = own + torch.randn_like(own)
        made = next_tokens(own, argmax_lowest(own), sequences, drafts, vocabulary_size)
        for n, token in enumerate(made.token_ids.tolist()):
            drafts[n].append(token)
            places[n].append(len(rows) * NUM_SEQUENCES + n if made.has_row[n] else -1)
        if made.rows is not None:
            rows.append(made.rows)
    proposal = Proposal(
        tuple(tuple(draft) for draft in drafts),
        tuple(tuple(place) for place in places),
        ("model",) * NUM_SEQUENCES,
        torch.cat(rows) if rows else None,
    )
    entries = [PlanEntry(sequence, 1, True, NUM_DRAFTED) for sequence in sequences]
    numbers = tuple(range(NUM_SEQUENCES))
    first = tuple(n * (NUM_DRAFTED + 1) for n in numbers)
    none = (0,) * NUM_SEQUENCES
    scores = Scores(logits, numbers, first, none, first, len(logits), None)
    return lambda: verifier.accept(entries, proposal, scores).read()


def timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
