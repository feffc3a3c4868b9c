"""What a client that is killed leaves behind in the real engine: nothing."""

from __future__ import annotations

import functools
import json
import socket
import struct
import time
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread
import pytest
from websockets.asyncio.client import connect

from paceline.composition import build_engine, check_models, facts_of, plan_for
from paceline.core.config import Device, Dtype, ServeConfig, resolve
from paceline.engine.thread import EngineThread
from paceline.server.listener import address_of, bind
from paceline.server.serving import serve
from tests.server.serving import receive

if TYPE_CHECKING:
    from collections.abc import Callable

    from paceline.core.events import EngineStatus, StepResult

pytestmark = [pytest.mark.anyio, pytest.mark.e2e, pytest.mark.weights]


class _Recording(EngineThread):
    """Notes the step that was the last one when each cancel came."""

    cancelled_at: list[int]

    def cancel(self, request_id: str) -> None:
        self.cancelled_at.append(self.status().step)
        super().cancel(request_id)


def _wait_until_idle(thread: EngineThread) -> EngineStatus:
    while (status := thread.status()).num_running:
        time.sleep(0.005)
    return status


async def test_its_sequences_and_blocks_are_gone_after_one_more_step() -> None:
    config = ServeConfig(device=Device.CPU, dtype=Dtype.FLOAT32, kv_memory=256 << 20)
    models = check_models(config)
    engine_config = resolve(config, facts_of(models))
    plan = plan_for(models, engine_config, kv_memory=config.kv_memory)
    threads: list[_Recording] = []
    engine = await anyio.to_thread.run_sync(build_engine, models, engine_config, plan)

    def start_thread(deliver: Callable[[StepResult], None]) -> _Recording:
        thread = _Recording(engine, deliver)
        thread.cancelled_at = []
        threads.append(thread)
        return thread

    listener = bind("127.0.0.1", 0)
    async with anyio.create_task_group() as tasks:
        run = functools.partial(
            serve, listener, start_thread, models.codec, config, handle_signals=False
        )
        shutdown = await tasks.start(run)
        (thread,) = threads
        client = await connect(
            address_of(listener).replace("http", "ws") + "/v1/responses", compression=None
        )
        for lane in ("a", "b", "c"):
            await client.send(
                json.dumps({"type": "response.create", "input": "Tell a story.", "stream_id": lane})
            )
        lanes: set[str] = set()
        while len(lanes) < 3:
            event = await receive(client)
            if event["type"] == "response.output_text.delta":
                lanes.add(event["stream_id"])
        assert thread.status().num_running == 3
        raw = client.transport.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.transport.abort()
        status = await anyio.to_thread.run_sync(_wait_until_idle, thread)
        # One step may have been under way, the next one applies the cancel.
        assert len(thread.cancelled_at) == 3
        assert status.step <= thread.cancelled_at[0] + 2
        assert status.num_waiting == 0
        assert status.num_free_blocks + status.num_cached_blocks == status.num_blocks
        shutdown.begin()
