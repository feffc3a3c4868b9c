"""Error codes: each has one meaning, and the events made of them carry it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from paceline_protocol.errors import MEANINGS, ErrorCode, ProtocolError
from paceline_protocol.messages import ErrorEvent


@pytest.mark.parametrize("code", ErrorCode)
def test_every_code_has_a_status_and_a_type(code: ErrorCode) -> None:
    assert 400 <= MEANINGS[code].status < 600
    event = ErrorEvent.of(code, "why", param="field", stream_id="lane")
    assert event.status == MEANINGS[code].status
    assert event.error.type == MEANINGS[code].type
    assert (event.error.code, event.error.param, event.stream_id) == (code, "field", "lane")


def test_only_our_own_faults_are_server_errors() -> None:
    ours = {code for code in ErrorCode if MEANINGS[code].status >= 500}
    assert ours == {
        ErrorCode.SERVER_SHUTTING_DOWN,
        ErrorCode.NON_FINITE_LOGITS,
        ErrorCode.SERVER_ERROR,
    }
    assert all(MEANINGS[code].type == "server_error" for code in ours)


def test_an_error_reads_as_its_message() -> None:
    error = ProtocolError(ErrorCode.QUEUE_FULL, "64 requests wait already")
    assert str(error) == "64 requests wait already"
    assert (error.status, error.type, error.param) == (429, "rate_limit_error", None)


def test_the_readme_lists_every_code_with_its_status() -> None:
    readme = (Path(__file__).parents[2] / "protocol" / "README.md").read_text(encoding="utf-8")
    listed = {
        name: int(status)
        for names, status in re.findall(r"^\| ((?:`\w+`(?:, )?)+) \| (\d{3}) \|", readme, re.M)
        for name in re.findall(r"`(\w+)`", names)
    }
    assert listed == {code.value: MEANINGS[code].status for code in ErrorCode}
