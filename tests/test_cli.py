"""The command line from outside: exit codes, one-line errors, help."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import httpx
import numpy as np
import pytest

from strata import __version__
from strata.cli import COMMANDS, main
from strata.options import EMBEDDED_MODEL, flag_name, options_of
from strata.serve.run import address, listen
from tests.conftest import clean_environment

LOGITS = ["logits", "--model", "none.gguf", "--tokens", "none.json"]


def test_version(run_strata):
    answer = run_strata("--version")
    assert (answer.returncode, answer.stdout) == (0, f"strata {__version__}\n")


def test_version_imports_nothing_heavy():
    code = "import sys, strata.cli; strata.cli.main(['--version']); print(*sys.modules)"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "numpy", "fastapi", "huggingface_hub"} & set(answer.stdout.split())


@pytest.mark.parametrize("command", COMMANDS)
def test_help_lists_every_option_of_the_schema(command, capsys):
    assert main([command, "--help"]) == 0
    text = capsys.readouterr().out
    for name in options_of(command):
        assert flag_name(name) in text


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (["srv"], "No such command 'srv'"),
        (["serve", "--prt", "1"], "No such option: --prt"),
        (["serve", "--port", "x"], "strata: --port: 'x' is not allowed"),
        (["serve", "--port"], "requires an argument"),
        (["pull"], "Missing argument"),
        (["logits"], "strata: --tokens is missing"),
        # files that cannot be written are named before the model, which is not there either
        ([*LOGITS, "--out", "."], "strata: --out .: is a folder; name a file in it"),
        ([*LOGITS, "--out", "/none/o.npy"], "strata: --out /none/o.npy: there is no folder /none"),
        ([*LOGITS, "--out", "o.npy", "--record-trace", ".."], "strata: --record-trace ..: is a folder"),
        (["synth", "tiny", "--quant", "q2_0", "--out", "."], "strata: --out .: is a folder"),
        (["synth", "none", "--out", os.devnull], "is a device or a pipe; name a file"),
    ],
)
def test_wrong_usage_exits_with_2(line, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(line) == 2
    assert message in capsys.readouterr().err


def test_a_bad_config_file_exits_with_2(run_strata, tmp_path):
    (tmp_path / "strata.toml").write_text("prot = 80\n")
    answer = run_strata("serve")
    assert answer.returncode == 2
    assert answer.stderr == f"strata: {tmp_path}/strata.toml:1: unknown option 'prot'; did you mean 'port'?\n"


def test_brackets_in_an_error_are_shown(run_strata):
    answer = run_strata("logits", "--model", "/none/[red]x.gguf", "--tokens", "t.json", "--out", "o.npy")
    assert answer.returncode == 1
    assert "t.json" in answer.stderr and "Traceback" not in answer.stderr


class TestLogits:
    @pytest.fixture
    def tokens(self, tmp_path):
        def write(value):
            path = tmp_path / "tokens.json"
            path.write_text(value if isinstance(value, str) else json.dumps(value))
            return str(path)

        return write

    @pytest.mark.slow
    def test_every_position_has_its_logits(self, tokens, tmp_path):
        import torch

        from tests.helpers.models import native_model

        ids = [(7 * i) % 7995 for i in range(530)]  # more than one chunk
        out = tmp_path / "logits.npy"
        assert main(["logits", "--tokens", tokens(ids), "--out", str(out)]) == 0
        logits = np.load(out)
        assert logits.dtype == np.float32 and logits.shape == (530, 8192)
        model = native_model(EMBEDDED_MODEL)
        with torch.inference_mode():
            whole = model.forward(ids, model.new_state(), all_logits=True)
        np.testing.assert_array_equal(logits, whole.numpy())
        assert not list(tmp_path.glob("*.part"))

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("{", "is not JSON"),
            ("[" * 100_000, "is not JSON"),
            ("[]", "holds no list of token ids"),
            ('{"a": 1}', "holds no list of token ids"),
            ("[1, [2]]", "item 1 is [2], not a token id"),
            ("[1, 2.0]", "item 1 is 2.0, not a token id"),
            ("[true]", "item 0 is true, not a token id"),
        ],
    )
    def test_a_bad_token_file_is_named(self, tokens, text, message, capsys):
        assert main(["logits", "--tokens", tokens(text), "--out", "o.npy"]) == 1
        error = capsys.readouterr().err
        assert "tokens.json" in error and message in error

    def test_an_id_beyond_the_vocabulary_is_named_with_both_numbers(self, tokens, capsys, tmp_path):
        assert main(["logits", "--tokens", tokens([1, 8192]), "--out", str(tmp_path / "o.npy")]) == 1
        assert "item 1 is token 8192; the model's vocabulary has 8192 tokens" in capsys.readouterr().err
        assert not list(tmp_path.glob("o.npy*"))

    def test_a_scripted_model_has_no_logits(self, tokens, capsys):
        line = ["logits", "--model", "scripted:x.jsonl", "--tokens", tokens([1]), "--out", "o.npy"]
        assert main(line) == 1
        assert "a scripted model has no logits" in capsys.readouterr().err


class TestPull:
    def test_the_path_is_all_of_standard_output(self, run_strata, tmp_path):
        from helpers.fake_hub import serve

        with serve({"model.gguf": b"GGUF of a kind"}) as hub:
            line = ["pull", "hf:owner/repo:model.gguf", "--hf-endpoint", hub.endpoint]
            answer = run_strata(*line, HF_HOME=str(tmp_path / "hub"))
        assert answer.returncode == 0, answer.stderr
        path = Path(answer.stdout.removesuffix("\n"))
        assert path.is_relative_to(tmp_path / "hub") and path.read_bytes() == b"GGUF of a kind"

    def test_the_endpoint_may_come_from_the_environment(self, run_strata, tmp_path):
        environment = {"HF_HOME": str(tmp_path / "hub"), "HF_ENDPOINT": "http://127.0.0.1:1"}
        answer = run_strata("pull", "hf:owner/repo", **environment)
        assert answer.returncode == 1
        assert "hub does not answer" in answer.stderr and "Traceback" not in answer.stderr

    def test_what_is_no_reference_is_named(self, run_strata):
        answer = run_strata("pull", "model.gguf")
        assert (answer.returncode, answer.stdout) == (1, "")
        assert "'model.gguf' is not a model on a hub" in answer.stderr


def test_arguments_of_test_go_to_pytest(run_strata):
    answer = run_strata("test", "--collect-only", "-q", "tests/test_cli.py", "-k", "test_version")
    assert answer.returncode == 0, answer.stdout
    assert "test_version" in answer.stdout and "TestLogits" not in answer.stdout


def test_pytests_exit_code_is_ours(run_strata):
    assert run_strata("test", "-q", "tests/test_cli.py", "-k", "no_such_test").returncode == 5


@pytest.mark.skipif(sys.platform == "win32", reason="signals of a terminal")
def test_ctrl_c_while_the_model_loads_is_said_in_one_line(tmp_path):
    (tmp_path / "script.jsonl").write_text('["Hi"]\n')
    with closing(listen("127.0.0.1", 0)) as listener:
        url = address(listener)
    line = ["serve", "--model", "scripted:script.jsonl", "--port", url.rpartition(":")[2]]
    server = subprocess.Popen(
        [sys.executable, "-m", "strata", *line],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=clean_environment(),
        text=True,
        cwd=tmp_path,
    )
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:  # until it answers, which it does before the engine is there
        with contextlib.suppress(httpx.TransportError):
            assert httpx.get(f"{url}/health", trust_env=False).json()["status"] == "loading"
            break
        time.sleep(0.05)
    server.send_signal(signal.SIGINT)
    output, error = server.communicate(timeout=60)
    assert (server.returncode, output) == (130, "")
    assert error.count("\n") == 1 and error.endswith(" stopping; the model was still loading\n")


@pytest.mark.skipif(sys.platform == "win32", reason="signals of a terminal")
def test_ctrl_c_while_serving_is_quiet(tmp_path):
    script = tmp_path / "script.jsonl"
    script.write_text('["Hi"]\n')
    server = subprocess.Popen(
        [sys.executable, "-m", "strata", "serve", "--model", f"scripted:{script}", "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=clean_environment(),
        text=True,
        cwd=tmp_path,
    )
    assert "http://127.0.0.1:" in server.stdout.readline()
    server.send_signal(signal.SIGINT)
    started = time.monotonic()
    _, error = server.communicate(timeout=60)
    assert server.returncode in (0, 130)
    assert "Traceback" not in error
    assert time.monotonic() - started < 30
