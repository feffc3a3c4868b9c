"""How the memory of one device is shared out, before anything is loaded into it.

Pure arithmetic over sizes that are known from configurations; no torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.table import Table

from paceline.core.config import Device
from paceline.core.controller_session import MODEL_DEPTH
from paceline.core.errors import ConfigError

if TYPE_CHECKING:
    from paceline.core.config import EngineConfig

# Of a CUDA device's free memory; the rest is for the allocator's gaps and kernels' workspaces.
_CUDA_SHARE = 0.9
# Of a machine's free memory, for K/V: other programs live there too.
_CPU_KV_SHARE = 0.25
# And no more than this: it is written to at the start, which takes time.
_CPU_KV_BYTES = 2 << 30
# Tensors of one step beside the weights, in rows of the hidden and of the inner width.
_NUM_HIDDEN_ROWS = 8
_NUM_INNER_ROWS = 3
# Bytes for one logit while it is warped: float32 copies for probabilities and sorting, an index.
_BYTES_PER_WARPED_LOGIT = 3 * 4 + 8
# A session of this many tokens is the example in the table beside full-length ones.
EXAMPLE_SESSION = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """The sizes of one model in the dtype that it is served in.

    weight_bytes: all weights. copy_bytes: of weights rearranged or multiplied out, where the
    weights themselves are needed too. kv_bytes_per_token: keys and values over all layers.
    vocabulary_rows: width of its logits. hidden_size, intermediate_size: widths of activations.
    num_bytes: of one number.
    """

    weight_bytes: int
    kv_bytes_per_token: int
    vocabulary_rows: int
    hidden_size: int
    intermediate_size: int
    num_bytes: int
    copy_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryShare:
    """Memory with one choice of models.

    weight_bytes: with all copies, which are copy_bytes of it. buffer_bytes: of a step at its
    largest, activations and verification. kv_bytes: for K/V, of which whole blocks are used.
    num_blocks: K/V blocks, each for both models.
    """

    weight_bytes: int
    copy_bytes: int
    buffer_bytes: int
    kv_bytes_per_token: int
    kv_bytes: int
    num_blocks: int
    block_size: int

    @property
    def num_tokens(self) -> int:
        """Tokens whose K/V fits, over all sessions."""
        return self.num_blocks * self.block_size

    def num_sessions(self, num_tokens: int) -> int:
        """Sessions of that many tokens that fit at once, sharing nothing."""
        blocks_each = -(-num_tokens // self.block_size)
        return self.num_blocks // blocks_each


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """What fits. share: as configured; share_without_draft: the same without the draft model, for
    seeing what it costs. available_bytes: free on the device before loading."""

    target: Footprint
    draft: Footprint | None
    share: MemoryShare
    share_without_draft: MemoryShare
    available_bytes: int
    max_model_len: int

    @property
    def num_blocks(self) -> int:
        return self.share.num_blocks


def plan_memory(
    target: Footprint,
    draft: Footprint | None,
    config: EngineConfig,
    *,
    available_bytes: int,
    kv_memory: int | None,
) -> MemoryPlan:
    """Shares out a device's free memory.

    kv_memory: bytes for K/V as asked for. None takes, on CUDA, what is left of nine tenths; on a
    CPU a quarter of what is left, at most 2 GiB, and no more than all sequences at full length can
    use.

    Raises ConfigError with the numbers when weights and buffers do not fit, or no block does.
    """
    return MemoryPlan(
        target=target,
        draft=draft,
        share=_share(target, draft, config, available_bytes, kv_memory),
        share_without_draft=_share(target, None, config, available_bytes, kv_memory),
        available_bytes=available_bytes,
        max_model_len=config.max_model_len,
    )


def _share(
    target: Footprint,
    draft: Footprint | None,
    config: EngineConfig,
    available_bytes: int,
    kv_memory: int | None,
) -> MemoryShare:
    models = [target] if draft is None else [target, draft]
    copy_bytes = sum(model.copy_bytes for model in models)
    weight_bytes = copy_bytes + sum(model.weight_bytes for model in models)
    kv_bytes_per_token = sum(model.kv_bytes_per_token for model in models)
    buffer_bytes = _buffer_bytes(target, draft, config)
    block_bytes = kv_bytes_per_token * config.block_size
    left = available_bytes - weight_bytes - buffer_bytes
    if kv_memory is not None:
        kv_bytes = kv_memory
        if kv_bytes < 2 * block_bytes:
            raise ConfigError(
                f"kv_memory is {show_bytes(kv_bytes)}; the smallest useful K/V memory is two "
                f"blocks, {show_bytes(2 * block_bytes)}",
                field="kv_memory",
            )
        is_enough = kv_bytes <= left
    else:
        if config.device is Device.CUDA:
            kv_bytes = left - int(available_bytes * (1 - _CUDA_SHARE))
        else:
            blocks_each = -(-config.max_model_len // config.block_size)
            useful = config.max_sequences * blocks_each * block_bytes
            kv_bytes = min(int(left * _CPU_KV_SHARE), useful, _CPU_KV_BYTES)
        is_enough = kv_bytes >= 2 * block_bytes
    if not is_enough:
        asked = "" if kv_memory is None else f", {show_bytes(kv_memory)} of K/V"
        raise ConfigError(
            f"the memory does not suffice: {show_bytes(weight_bytes)} of weights, "
            f"{show_bytes(buffer_bytes)} of buffers{asked}, and {show_bytes(available_bytes)} "
            "are free; take a smaller model, dtype, max_sequences or kv_memory",
            field="kv_memory",
        )
    return MemoryShare(
        weight_bytes=weight_bytes,
        copy_bytes=copy_bytes,
        buffer_bytes=buffer_bytes,
        kv_bytes_per_token=kv_bytes_per_token,
        kv_bytes=kv_bytes,
        num_blocks=kv_bytes // block_bytes,
        block_size=config.block_size,
    )


def _buffer_bytes(target: Footprint, draft: Footprint | None, config: EngineConfig) -> int:
    """A step at its largest: every sequence verifies, and the rest of the budget is prefill."""
    gamma = config.num_speculative_tokens
    num_verified = min(config.max_sequences * (1 + gamma), config.token_budget)
    num_drafted = config.max_sequences * min(gamma, MODEL_DEPTH)
    warped = target.num_bytes + _BYTES_PER_WARPED_LOGIT
    total = num_verified * target.vocabulary_rows * warped
    total += _activation_bytes(target, config.token_budget)
    if draft is not None:
        # The draft's probabilities are kept until the acceptance ratios are computed.
        total += num_drafted * draft.vocabulary_rows * 4
        total += config.max_sequences * draft.vocabulary_rows * warped
        total += _activation_bytes(draft, config.token_budget)
    return total


def _activation_bytes(model: Footprint, num_rows: int) -> int:
    width = _NUM_HIDDEN_ROWS * model.hidden_size + _NUM_INNER_ROWS * model.intermediate_size
    return num_rows * width * model.num_bytes


def render_plan(plan: MemoryPlan, *, target_name: str, draft_name: str | None) -> Table:
    """The plan as a table for people."""
    table = Table(title="Memory plan", title_justify="left")
    table.add_column("", no_wrap=True)
    table.add_column(target_name if draft_name is None else f"{target_name} + {draft_name}")
    shares = [plan.share]
    if draft_name is not None:
        table.add_column(f"{target_name} alone")
        shares.append(plan.share_without_draft)
    example = min(EXAMPLE_SESSION, plan.max_model_len)
    rows: list[tuple[str, list[str]]] = [
        ("weights", [show_bytes(share.weight_bytes) for share in shares]),
        ("of these, copies for speed", [show_bytes(share.copy_bytes) for share in shares]),
        ("buffers of the largest step", [show_bytes(share.buffer_bytes) for share in shares]),
        ("K/V of one token", [show_bytes(share.kv_bytes_per_token) for share in shares]),
        ("K/V memory", [show_bytes(share.kv_bytes) for share in shares]),
        (
            f"blocks of {plan.share.block_size} tokens",
            [f"{share.num_blocks:,}" for share in shares],
        ),
        ("tokens", [f"{share.num_tokens:,}" for share in shares]),
        (
            f"sessions of {example:,} tokens",
            [f"{share.num_sessions(example):,}" for share in shares],
        ),
    ]
    if not plan.share.copy_bytes:
        del rows[1]
    if plan.max_model_len > example:
        rows.append(
            (
                f"sessions of {plan.max_model_len:,} tokens",
                [f"{share.num_sessions(plan.max_model_len):,}" for share in shares],
            )
        )
    for name, cells in rows:
        table.add_row(name, *cells)
    return table


def show_bytes(count: int) -> str:
    """Bytes in the unit that leaves one to four digits before the point."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
