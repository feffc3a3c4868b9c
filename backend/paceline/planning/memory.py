"""Whether both models fit, and what the draft takes away from sessions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from paceline.core.errors import ConfigError
from paceline.planning.precision import PRECISIONS
from paceline.planning.roofline import PlacedModel

if TYPE_CHECKING:
    from paceline.planning.precision import Precision

_DEVICE_COUNTS = (1, 2, 4, 8, 16)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """Bytes are of the fullest device unless they say total."""

    usable_bytes: float
    target_bytes: float
    draft_bytes: float
    target_bytes_total: float
    draft_bytes_total: float
    kv_bytes_per_token: float
    draft_kv_bytes_per_token: float
    kv_tokens_plain: int
    kv_tokens_with_draft: int
    context: int
    devices_needed: int | None
    precision_that_fits: str | None

    @property
    def sessions_plain(self) -> int:
        """Sessions of `context` tokens that fit without a draft."""
        return self.kv_tokens_plain // self.context

    @property
    def sessions_with_draft(self) -> int:
        return self.kv_tokens_with_draft // self.context

    @property
    def target_fits(self) -> bool:
        """True if the target and one session fit, without a draft."""
        return self.sessions_plain >= 1

    @property
    def pair_fits(self) -> bool:
        return self.sessions_with_draft >= 1


def plan_memory(
    target: PlacedModel, draft: PlacedModel | None, context: int, memory_fraction: float
) -> MemoryPlan:
    """Share out the memory of the fullest device.

    A draft on one device of several makes that one the fullest. Every cached token costs its
    K/V in both models, because both share one block table.

    Args:
        context: tokens of one session.
        memory_fraction: part of a device's memory for weights and K/V; the rest is for
            activations, the runtime and fragmentation.
    """
    usable = target.device.memory_bytes * memory_fraction
    draft_bytes = draft.stored_bytes_per_device if draft else 0.0
    draft_kv = draft.kv_bytes_per_token_per_device if draft else 0.0
    target_kv = target.kv_bytes_per_token_per_device
    room = usable - target.stored_bytes_per_device
    return MemoryPlan(
        usable_bytes=usable,
        target_bytes=target.stored_bytes_per_device,
        draft_bytes=draft_bytes,
        target_bytes_total=target.stored_bytes,
        draft_bytes_total=draft.stored_bytes if draft else 0.0,
        kv_bytes_per_token=target_kv,
        draft_kv_bytes_per_token=draft_kv,
        kv_tokens_plain=max(0, int(room / target_kv)),
        kv_tokens_with_draft=max(0, int((room - draft_bytes) / (target_kv + draft_kv))),
        context=context,
        devices_needed=_devices_needed(target, draft, context, usable),
        precision_that_fits=_precision_that_fits(target, draft, context, usable),
    )


def _fits(
    target: PlacedModel,
    draft: PlacedModel | None,
    context: int,
    usable: float,
    *,
    num_devices: int,
    precision: Precision,
) -> bool:
    placed = PlacedModel(
        target.shape, precision, target.device, num_devices, target.kv_element_bytes
    )
    needed = placed.stored_bytes_per_device + context * placed.kv_bytes_per_token_per_device
    if draft is not None:
        one = PlacedModel(draft.shape, draft.precision, draft.device, 1, draft.kv_element_bytes)
        needed += one.stored_bytes_per_device + context * one.kv_bytes_per_token_per_device
    return needed <= usable


def _devices_needed(
    target: PlacedModel, draft: PlacedModel | None, context: int, usable: float
) -> int | None:
    """The least number of devices that holds both and one session, the draft on one of them."""
    for count in _DEVICE_COUNTS:
        try:
            if _fits(target, draft, context, usable, num_devices=count, precision=target.precision):
                return count
        except ConfigError:  # the heads do not divide: no such placement
            continue
    return None


def _precision_that_fits(
    target: PlacedModel, draft: PlacedModel | None, context: int, usable: float
) -> str | None:
    """The widest number format of the target with which the devices at hand would do."""
    for precision in sorted(PRECISIONS.values(), key=lambda each: -each.bits):
        if precision.bits < target.precision.bits and _fits(
            target, draft, context, usable, num_devices=target.num_devices, precision=precision
        ):
            return precision.name
    return None
