"""Our own attention kernel against float64, and what it promises beyond values."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest
import torch

from paceline.model import native
from paceline.model.attention_cpu import PagedAttention
from paceline.model.attention_native import CpuAttention, NativePagedAttention
from paceline.model.batch import Segment, pack
from tests.model.attention_models import plain_varlen

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from torch import Tensor

BLOCK_SIZE = 8
SCALE = 0.17

needs_compiler = pytest.mark.skipif(
    native.load_kernels() is None, reason="no C++ compiler on this machine"
)


class Case:
    """Random K/V memory and rows for segments of (start, length)."""

    def __init__(
        self,
        spans: Sequence[tuple[int, int]],
        *,
        kv_heads: int = 2,
        share: int = 3,
        width: int = 64,
        heads_first: bool = False,
    ) -> None:
        generator = torch.Generator().manual_seed(11)
        widths = [-(-(start + length) // BLOCK_SIZE) for start, length in spans]
        order = iter(torch.randperm(sum(widths) + 2, generator=generator).tolist())
        self.tables = [list(itertools.islice(order, count)) for count in widths]
        self.spans = list(spans)

        def random(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator).to(torch.bfloat16)

        num_blocks = sum(widths) + 2
        if heads_first:
            rows = random(2, kv_heads, num_blocks, BLOCK_SIZE, width)
            self.memory = rows.permute(0, 2, 3, 1, 4)
        else:
            self.memory = random(2, num_blocks, BLOCK_SIZE, kv_heads, width)
        total = sum(length for _, length in spans)
        # As a merged projection gives them: views of rows that hold all three.
        merged = random(total, kv_heads * (share + 2), width)
        self.query = merged[:, : kv_heads * share]
        self.key = merged[:, kv_heads * share : kv_heads * (share + 1)]
        self.value = merged[:, kv_heads * (share + 1) :]

    def native(self, which: Sequence[int] | None = None, window: int | None = None) -> Tensor:
        """The kernel's answer for all segments, or for some of them in a batch of their own."""
        chosen = range(len(self.spans)) if which is None else which
        segments: list[Segment] = []
        rows: list[int] = []
        ends = list(itertools.accumulate(length for _, length in self.spans))
        for index in chosen:
            start, length = self.spans[index]
            segments.append(Segment([0] * length, start, self.tables[index], 0))
            rows.extend(range(ends[index] - length, ends[index]))
        context = CpuAttention([self.memory]).context(pack(segments, BLOCK_SIZE))
        assert isinstance(context, NativePagedAttention)
        merged = torch.cat((self.query, self.key, self.value), dim=1)[rows]
        query, key, value = torch.split(
            merged, [self.query.shape[1], self.key.shape[1], self.value.shape[1]], dim=1
        )
        return context.attend(0, query, key, value, SCALE, window)

    def exact(self, window: int | None = None, *, of_sizes: bool = False) -> Tensor:
        """In float64, key by key. of_sizes: of the values' sizes, without their signs."""
        memory = self.memory.double().contiguous()
        segments = [
            Segment([0] * length, start, table, 0)
            for (start, length), table in zip(self.spans, self.tables, strict=True)
        ]
        batch = pack(segments, BLOCK_SIZE)
        flat = memory.flatten(1, 2)
        flat[0, torch.from_numpy(batch.slots)] = self.key.double()
        flat[1, torch.from_numpy(batch.slots)] = self.value.double()
        memory[1] = memory[1].abs() if of_sizes else memory[1]
        bounds = [0, *itertools.accumulate(length for _, length in self.spans)]
        return plain_varlen(
            self.query.double(),
            memory[0],
            memory[1],
            torch.tensor(bounds),
            None,
            int(batch.query_lengths.max()),
            int(batch.context_lengths.max()),
            scale=SCALE,
            window_size=(-1 if window is None else window - 1, 0),
            enable_gqa=self.query.shape[1] != self.key.shape[1],
            seqused_k=torch.from_numpy(batch.context_lengths),
            block_table=torch.from_numpy(batch.block_tables),
            num_splits=1,
        )


MIXED = [(0, 21), (300, 1), (37, 5), (255, 2), (520, 1), (0, 1), (250, 18)]


@needs_compiler
@pytest.mark.parametrize("window", [None, 5, 270])
@pytest.mark.parametrize(
    ("kv_heads", "share", "width"), [(2, 3, 64), (1, 1, 32), (3, 4, 96), (1, 8, 128)]
)
@pytest.mark.parametrize("heads_first", [False, True])
def test_values(
    kv_heads: int, share: int, width: int, window: int | None, heads_first: bool
) -> None:
    case = Case(MIXED, kv_heads=kv_heads, share=share, width=width, heads_first=heads_first)
    exact, sizes = case.exact(window), case.exact(window, of_sizes=True)
    value = case.native(window=window).double()
    # The result is rounded to bfloat16 (by half of 2^-7), and so is each weight before it.
    bound = 2**-8 * (exact.abs() + sizes) + 1e-5
    assert bool(((value - exact).abs() <= bound).all())
    # Roundings of weights cancel out: of many, little is left.
    assert float((value - exact).abs().mean()) < 0.2 * float(bound.mean())


@needs_compiler
def test_a_segment_does_not_depend_on_its_company() -> None:
    together = Case(MIXED).native()
    lengths = [length for _, length in MIXED]
    parts = torch.split(together, lengths)
    for index, part in enumerate(parts):
        assert torch.equal(part, Case(MIXED).native([index]))


@needs_compiler
def test_verifying_tokens_gives_what_decoding_them_one_by_one_gives() -> None:
    case = Case([(509, 6)])
    together = case.native()
    for row in range(6):
        one = pack([Segment([0], 509 + row, case.tables[0], 0)], BLOCK_SIZE)
        context = CpuAttention([case.memory]).context(one)
        part = slice(row, row + 1)
        alone = context.attend(0, case.query[part], case.key[part], case.value[part], SCALE, None)
        assert torch.equal(alone, together[part])


@needs_compiler
def test_nan_stays_in_its_own_sequence() -> None:
    case = Case([(40, 3), (300, 2), (0, 4)])
    case.query[4] = torch.nan
    case.key[7] = torch.nan
    output = case.native()
    is_bad = output.float().isnan().flatten(1).any(1)
    # Row 4 has a NaN of its own; rows 7 and 8 see the key of row 7; nobody else does.
    assert is_bad.tolist() == [False] * 4 + [True] + [False] * 2 + [True, True]


@needs_compiler
def test_keys_and_values_are_written_where_other_attention_finds_them() -> None:
    case = Case([(10, 7)])
    case.native()
    batch = pack([Segment([0] * 7, 10, case.tables[0], 0)], BLOCK_SIZE)
    flat = case.memory.flatten(1, 2)[:, torch.from_numpy(batch.slots)]
    assert torch.equal(flat[0], case.key)
    assert torch.equal(flat[1], case.value)


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((2, 4, 8, 2, 64), torch.float32), ((2, 4, 8, 2, 40), torch.bfloat16)],
)
def test_other_memory_goes_to_torch(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    batch = pack([Segment([0], 0, [1], 0)], 8)
    context = CpuAttention([torch.zeros(shape, dtype=dtype)]).context(batch)
    assert isinstance(context, PagedAttention)


def test_the_kernels_can_be_switched_off() -> None:
    batch = pack([Segment([0], 0, [1], 0)], 8)
    layers = [torch.zeros(2, 4, 8, 2, 64, dtype=torch.bfloat16)]
    context = CpuAttention(layers, allow_native=False).context(batch)
    assert isinstance(context, PagedAttention)


def test_without_a_compiler_there_are_no_kernels_and_no_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    assert native.load_kernels.__wrapped__() is None


def test_a_compiler_that_fails_is_reported_and_forgiven(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    compiler = tmp_path / "c++"
    compiler.write_text('#!/bin/sh\n[ "$1" = --version ] && exit 0\necho no omp >&2\nexit 1\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert native.load_kernels.__wrapped__() is None
    assert "no omp" in caplog.text
    assert not list((tmp_path / "cache").rglob("*.so"))


@needs_compiler
def test_a_second_start_builds_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert native.load_kernels.__wrapped__() is not None
    (built,) = tmp_path.rglob("*.so")
    written_at = built.stat().st_mtime_ns
    assert native.load_kernels.__wrapped__() is not None
    assert list(tmp_path.rglob("*.so")) == [built]
    assert built.stat().st_mtime_ns == written_at
