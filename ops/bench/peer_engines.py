"""Engines that can be asked alike: servers over HTTP, and transformers in this process."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import tempfile
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import httpx
import torch
from transformers import StoppingCriteria, StoppingCriteriaList

from paceline.model.loading import load_target
from paceline.model.threads import usable_cores, use_threads

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

START_SECONDS = 900
_LAST_CHARACTERS = 1500


@dataclass(frozen=True, slots=True)
class Answer:
    """One session's answer. asked_at: when its time began. num_tokens: since then."""

    asked_at: float
    first_at: float
    last_at: float
    num_tokens: int


class Engine(Protocol):
    """columns: ways to ask it, from a name to the options of that way.
    takes: whether a column can answer so many at once."""

    name: str

    @property
    def columns(self) -> Mapping[str, Mapping[str, Any]]: ...

    def takes(self, column: str, num_sessions: int) -> bool: ...

    def answer(self, column: str, prompts: Sequence[list[int]], num_tokens: int) -> list[Answer]:
        """All prompts at once, each answered with exactly `num_tokens` tokens."""
        ...

    def stop(self) -> None: ...


class ServerEngine:
    """A server with an OpenAI-like completions endpoint, started here and stopped at the end.

    command: `{port}` in it stands for a free port. columns: more fields of a request's body;
    `{session}` in a text stands for the session's number.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        columns: Mapping[str, Mapping[str, Any]],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.columns = columns
        self._port = _free_port()
        # Closed by `stop`, when the server has ended.
        self._log = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        self._process = subprocess.Popen(
            [word.replace("{port}", str(self._port)) for word in command],
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env=os.environ | dict(environment or {}),
        )
        self._client = httpx.Client(
            base_url=f"http://127.0.0.1:{self._port}", timeout=600, trust_env=False
        )
        self._model = ""

    def wait(self) -> None:
        """Until it answers. Raises RuntimeError with the end of what it wrote if it doesn't."""
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise RuntimeError(f"{self.name} ended: {self._said()}")
            try:
                model = str(self._client.get("/v1/models").json()["data"][0]["id"])
                body = {"model": model, "prompt": [5, 6, 7], "max_tokens": 1}
                if self._client.post("/v1/completions", json=body).status_code == 200:
                    self._model = model
                    return
            except (httpx.HTTPError, KeyError, IndexError, ValueError):
                pass
            time.sleep(0.2)
        raise RuntimeError(f"{self.name} is not ready after {START_SECONDS} s: {self._said()}")

    def takes(self, column: str, num_sessions: int) -> bool:
        return True

    def answer(self, column: str, prompts: Sequence[list[int]], num_tokens: int) -> list[Answer]:
        answers: list[Answer | None] = [None] * len(prompts)
        options = json.dumps(self.columns[column])

        def ask(index: int) -> None:
            own = json.loads(options.replace("{session}", str(index)))
            answers[index] = self._ask(prompts[index], num_tokens, own)

        threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(prompts))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        done = [answer for answer in answers if answer is not None]
        if len(done) < len(prompts):
            raise RuntimeError(f"{self.name} left requests unanswered: {self._said()}")
        return done

    def _ask(self, prompt: list[int], num_tokens: int, options: dict[str, Any]) -> Answer:
        body = {
            "model": self._model,
            "prompt": prompt,
            "max_tokens": num_tokens,
            "min_tokens": num_tokens,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            **options,
        }
        payload = json.dumps(body).encode()
        head = (
            f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:{self._port}\r\n"
            "Content-Type: application/json\r\nConnection: close\r\n"
            f"Content-Length: {len(payload)}\r\n\r\n"
        )
        received: list[tuple[float, bytes]] = []
        with socket.create_connection(("127.0.0.1", self._port)) as connection:
            asked_at = time.perf_counter()
            connection.sendall(head.encode() + payload)
            # Nothing is parsed while it streams: client and servers share the machine.
            while data := connection.recv(1 << 16):
                received.append((time.perf_counter(), data))
        text = b"".join(data for _, data in received)
        counts = [int(count) for count in re.findall(rb'"completion_tokens": ?(\d+)', text)]
        if not text.startswith(b"HTTP/1.1 200") or counts[-1:] != [num_tokens]:
            raise RuntimeError(f"{self.name} did not answer {num_tokens} tokens: {text[:300]!r}")
        times = [at for at, data in received if b'"text"' in data]
        return Answer(asked_at, times[0], times[-1], num_tokens)

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._log.close()

    def _said(self) -> str:
        self._log.seek(0)
        return self._log.read()[-_LAST_CHARACTERS:]


class TransformersEngine:
    """transformers' `generate`, one static batch of all sessions. It computes the prompt anew for
    each answer, so an answer's time begins with its first tokens. Speculation takes one sequence.

    assistant: folder of a draft model for `generate`'s assisted decoding.
    """

    name = "transformers"

    def __init__(self, target: Path, assistant: Path | None) -> None:
        use_threads(usable_cores())
        self._model: Any = load_target(str(target), attn_implementation="sdpa")
        self.columns: dict[str, dict[str, Any]] = {
            "transformers generate": {},
            "transformers prompt lookup": {"prompt_lookup_num_tokens": 4},
        }
        if assistant is not None:
            draft = load_target(str(assistant), attn_implementation="sdpa")
            self.columns["transformers assisted"] = {"assistant_model": draft}

    def takes(self, column: str, num_sessions: int) -> bool:
        return num_sessions == 1 or not self.columns[column]

    @torch.inference_mode()
    def answer(self, column: str, prompts: Sequence[list[int]], num_tokens: int) -> list[Answer]:
        longest = max(len(prompt) for prompt in prompts)
        ids = torch.tensor([[0] * (longest - len(each)) + each for each in prompts])
        mask = torch.tensor([[0] * (longest - len(each)) + [1] * len(each) for each in prompts])
        times = _StepTimes()
        asked_at = time.perf_counter()
        self._model.generate(
            ids,
            attention_mask=mask,
            do_sample=False,
            pad_token_id=0,
            max_new_tokens=num_tokens,
            min_new_tokens=num_tokens,
            stopping_criteria=StoppingCriteriaList([times]),
            **self.columns[column],
        )
        first_at, first_length = times.steps[0]
        last_at, last_length = times.steps[-1]
        if num_tokens == 1:
            return [Answer(asked_at, first_at, first_at, 1)] * len(prompts)
        return [Answer(first_at, first_at, last_at, last_length - first_length)] * len(prompts)

    def stop(self) -> None:
        pass


class _StepTimes(StoppingCriteria):
    """Stops nothing; notes when each step was over, and how long the sequences were."""

    def __init__(self) -> None:
        self.steps: list[tuple[float, int]] = []

    def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
        self.steps.append((time.perf_counter(), input_ids.shape[1]))
        return torch.zeros(input_ids.shape[0], dtype=torch.bool, device=input_ids.device)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
