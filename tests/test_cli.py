"""The command line: what it takes, and the one line that a wrong setting gets."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import runpy
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from paceline import cli, composition
from paceline.core.config import ServeConfig
from paceline.model import torch_build
from tests.model.tiny import byte_level_tokenizer, llama_config, write_model, write_tokenizer

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs a command line; returns exit code, standard output and standard error."""
    # Its handler would outlive the captured stream that it writes to.
    monkeypatch.setattr(composition, "configure_logging", lambda level: None)

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["paceline", *arguments])
        capsys.readouterr()  # progress bars of making the models
        with pytest.raises(SystemExit) as ended:
            cli.main()
        captured = capsys.readouterr()
        code = ended.value.code
        return (code if isinstance(code, int) else 0), captured.out, captured.err

    return call


@pytest.fixture
def no_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading weights is a failure."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("weights were read")

    monkeypatch.setattr(composition, "load_model", refuse)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    folder = write_model(tmp_path / "target", llama_config())
    return write_tokenizer(folder, byte_level_tokenizer())


def test_version_and_help(run: Any) -> None:
    code, out, _ = run("--version")
    assert code == 0
    assert out.startswith("paceline ")
    code, out, _ = run("--help")
    assert code == 0
    for name in ("serve", "chat", "plan", "distill"):
        assert name in out


def test_it_runs_as_a_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["paceline", "--version"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("paceline", run_name="__main__")
    assert ended.value.code == 0


@pytest.mark.parametrize("command", ["serve", "chat"])
def test_help_is_whole_on_a_narrow_terminal(
    run: Any, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """Names that are cut cannot be typed."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERMINAL_WIDTH", "80")
    code, out, _ = run(command, "--help")
    assert code == 0
    assert "…" not in out
    assert max(map(len, out.splitlines())) <= 80
    shown = set(re.findall(r"--[a-z-]+", out))
    for name in inspect.signature(getattr(cli, command)).parameters:
        if name != "question":
            assert "--" + name.replace("_", "-").replace("origins", "origin") in shown


def test_every_setting_is_a_flag() -> None:
    flags = set(inspect.signature(cli.serve).parameters) - {"config"}
    assert flags == {field.name for field in dataclasses.fields(ServeConfig)}


def test_flags_and_file_become_settings(
    run: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen: list[ServeConfig] = []
    monkeypatch.setattr(composition, "run_server", lambda settings, listener: seen.append(settings))
    path = tmp_path / "serve.toml"
    path.write_text('port = 1\nkv_memory = "1GiB"\nallowed_origins = ["https://a.org"]\n')
    code, _, _ = run(
        *("serve", "--config", str(path), "--port", "0", "--drafter", "ngram"),
        *("--num-speculative-tokens", "3", "--min-acceptance", "0.25", "--log-prompts"),
    )
    assert code == 0
    assert seen == [
        ServeConfig.of(
            {
                "port": 0,
                "kv_memory": 1 << 30,
                "allowed_origins": ("https://a.org",),
                "drafter": "ngram",
                "num_speculative_tokens": 3,
                "min_acceptance": 0.25,
                "log_prompts": True,
            }
        )
    ]


@pytest.mark.usefixtures("no_weights")
class TestOneLineAndCodeTwo:
    def check(self, result: tuple[int, str, str], *words: str) -> None:
        code, _, err = result
        assert code == 2, err
        assert err.startswith("error: ")
        assert err.count("\n") == 1
        for word in words:
            assert word in err

    def test_settings(self, run: Any, tmp_path: Path) -> None:
        self.check(run("serve", "--kv-memory", "much"), "kv_memory", "2GiB")
        self.check(run("serve", "--drafter", "magic"), "drafter", "auto, model, ngram, none")
        path = tmp_path / "serve.toml"
        path.write_text("max_len = 3")
        self.check(run("serve", "--config", str(path)), "max_len", "max_lanes")
        self.check(run("chat", "hi", "--speculation", "maybe"), "speculation", "auto, on, off")

    def test_the_port_in_use(self, run: Any) -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = str(taken.getsockname()[1])
            self.check(run("serve", "--port", port), f"port {port}", "in use")

    def test_a_folder_without_a_tokenizer(self, run: Any, tmp_path: Path) -> None:
        folder = write_model(tmp_path / "m", llama_config())
        result = run("serve", "--port", "0", "--target", str(folder))
        self.check(result, "no tokenizer that can be read")

    def test_an_unsupported_architecture(self, run: Any, target: Path) -> None:
        config = json.loads((target / "config.json").read_text())
        config |= {"model_type": "gemma2", "head_dim": 8, "architectures": ["Gemma2ForCausalLM"]}
        (target / "config.json").write_text(json.dumps(config))
        self.check(run("serve", "--port", "0", "--target", str(target)), "caps its logits")

    def test_a_draft_with_another_vocabulary(self, run: Any, target: Path, tmp_path: Path) -> None:
        draft = write_model(tmp_path / "draft", llama_config())
        write_tokenizer(draft, byte_level_tokenizer(["other words make other merges"]))
        result = run("serve", "--port", "0", "--target", str(target), "--draft", str(draft))
        self.check(result, "different vocabularies: token", "in the target and b'")

    def test_memory_that_does_not_suffice(self, run: Any, target: Path) -> None:
        arguments = ("serve", "--port", "0", "--target", str(target), "--device", "cpu")
        self.check(run(*arguments, "--kv-memory", "1000TiB"), "1000.0 TiB of K/V", "are free")
        self.check(run(*arguments, "--max-model-len", "9999"), "exact up to 128")
        self.check(run(*arguments, "--drafter", "model"), "--draft")

    def test_a_device_that_is_not_there(self, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch_build, "why_no_cuda", lambda: "there is none")
        self.check(run("serve", "--port", "0", "--device", "cuda"), "device is cuda, but there is")


@pytest.mark.parametrize(
    "mistake",
    [
        "a missing folder",
        "a broken configuration",
        "a folder without a tokenizer",
        "a folder without weights",
        "a draft without weights",
        "a file that is no GGUF",
        "a taken port",
        "an unknown setting",
        "settings that contradict each other",
    ],
)
def test_typing_errors_do_not_wait_for_torch(mistake: str, tmp_path: Path) -> None:
    """Nor for anything else that the server alone needs."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        (tmp_path / "serve.toml").write_text("prot = 1")
        (tmp_path / "weights.gguf").write_bytes(b"not")
        for name, configuration in [
            ("broken", "{ "),
            ("bare", '{"model_type": "llama"}'),
            ("unweighted", '{"model_type": "llama"}'),
            ("draft", '{"format": "paceline-draft-1"}'),
        ]:
            (tmp_path / name).mkdir()
            (tmp_path / name / "config.json").write_text(configuration)
        (tmp_path / "unweighted" / "tokenizer.json").write_text("{}")
        arguments, message = {
            "a missing folder": (["--target", "./missing"], "target ./missing does not exist"),
            "a broken configuration": (
                ["--target", str(tmp_path / "broken")],
                f"target {tmp_path / 'broken'} has a config.json that cannot be read: ",
            ),
            "a folder without a tokenizer": (
                ["--target", str(tmp_path / "bare")],
                f"target {tmp_path / 'bare'} has no tokenizer",
            ),
            "a folder without weights": (
                ["--draft", str(tmp_path / "unweighted")],
                f"draft {tmp_path / 'unweighted'} has no model.safetensors",
            ),
            "a draft without weights": (
                ["--draft", str(tmp_path / "draft")],
                f"draft {tmp_path / 'draft'} has no model.safetensors",
            ),
            "a file that is no GGUF": (
                ["--target", str(tmp_path / "weights.gguf")],
                "weights.gguf is no GGUF file",
            ),
            "settings that contradict each other": (
                ["--token-budget", "2"],
                "it must be at least max_sequences",
            ),
            "a taken port": (["--port", str(taken.getsockname()[1])], "is in use"),
            "an unknown setting": (["--config", str(tmp_path / "serve.toml")], "unknown setting"),
        }[mistake]
        program = (
            "import sys\n"
            "heavy = ('torch', 'transformers', 'starlette', 'numpy')\n"
            "for name in heavy: sys.modules[name] = None\n"
            "import paceline.cli\n"
            f"sys.argv = ['paceline', 'serve', *{arguments!r}]\n"
            "paceline.cli.main()\n"
        )
        ended = _python(program)
    assert ended.returncode == 2
    assert message in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_chat_works_without_torch() -> None:
    program = (
        "import sys\n"
        "for name in ('torch', 'transformers', 'starlette', 'numpy'): sys.modules[name] = None\n"
        "import paceline.cli, paceline_client.chat\n"
        "sys.argv = ['paceline', 'serve', '--port', '0']\n"
        "paceline.cli.main()\n"
    )
    ended = _python(program)
    assert ended.returncode == 2
    assert "which is not installed: pip install 'paceline[serve]'" in ended.stderr
    assert ended.stderr.count("\n") == 1


def _python(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": ":".join(sys.path)},
    )
