"""Async client for Paceline.

from paceline_client import connect

async with connect("ws://127.0.0.1:8765") as session:
    async for event in session.respond("Explain what a Python generator is."):
        if event.type == "response.output_text.delta": ...
"""

from __future__ import annotations

from paceline_client.conversation import Conversation
from paceline_client.endpoint import DEFAULT_URL
from paceline_client.errors import (
    AuthenticationError,
    ConnectError,
    ConnectionLostError,
    PacelineClientError,
    PreviousResponseNotFoundError,
    QueueFullError,
    RequestRefusedError,
    ResponseFailedError,
    ServerBusyError,
    SessionClosedError,
)
from paceline_client.session import Session, connect
from paceline_client.streams import ResponseStream
from paceline_client.telemetry import TelemetryStream

__all__ = [
    "DEFAULT_URL",
    "AuthenticationError",
    "ConnectError",
    "ConnectionLostError",
    "Conversation",
    "PacelineClientError",
    "PreviousResponseNotFoundError",
    "QueueFullError",
    "RequestRefusedError",
    "ResponseFailedError",
    "ResponseStream",
    "ServerBusyError",
    "Session",
    "SessionClosedError",
    "TelemetryStream",
    "connect",
]
