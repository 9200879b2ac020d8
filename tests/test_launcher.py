"""The launcher script: what it detects, what it keeps, and what an interrupted install leaves."""

import importlib.machinery
import importlib.util
import json
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import ModuleType

import pytest

from tests.conftest import ROOT


@pytest.fixture
def launcher() -> ModuleType:
    """The launcher as a module, fresh for each test."""
    loader = importlib.machinery.SourceFileLoader("strata_launcher", str(ROOT / "strata"))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


@pytest.fixture
def checkout(launcher, tmp_path, monkeypatch) -> Path:
    """The launcher pointed at a made-up checkout whose installs only write down what they would do."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    (tmp_path / "tests" / "weights.txt").write_text("")
    monkeypatch.setattr(launcher, "ROOT", tmp_path)
    monkeypatch.setattr(launcher, "VENV", tmp_path / ".venv")
    monkeypatch.setattr(launcher, "MARKER", tmp_path / ".venv" / "strata.json")
    monkeypatch.setattr(launcher, "LOCK", tmp_path / ".venv.lock")
    monkeypatch.setattr(launcher, "run_step", lambda line, failure: steps.append(line))
    monkeypatch.setattr(launcher, "probe", lambda code: None)
    monkeypatch.setattr(launcher, "detect_build", lambda: "cpu")
    steps = launcher.steps = []

    def make_venv():
        python = launcher.venv_python()
        python.parent.mkdir(parents=True, exist_ok=True)
        python.touch()

    monkeypatch.setattr(launcher, "make_venv", make_venv)
    return tmp_path


def node(nodes: Path, number: int, **properties: int) -> None:
    """Write a node of a KFD topology as Linux shows it."""
    folder = nodes / str(number)
    folder.mkdir(parents=True)
    (folder / "properties").write_text("".join(f"{name} {value}\n" for name, value in properties.items()))


@pytest.mark.parametrize(
    ("version", "target"),
    [
        (110000, "gfx1100"),
        (110001, "gfx1101"),
        (110501, "gfx1151"),
        (120001, "gfx1201"),
        (100300, "gfx1030"),
        (90006, "gfx906"),
        (90010, "gfx90a"),
        (90402, "gfx942"),
    ],
)
def test_a_radeon_is_found_in_the_topology(launcher, tmp_path, version, target):
    node(tmp_path, 0, cpu_cores_count=16, simd_count=0, gfx_target_version=0)
    node(tmp_path, 1, cpu_cores_count=0, simd_count=192, gfx_target_version=version)
    assert launcher.radeon_targets(tmp_path) == [target]


def test_cpu_nodes_and_unreadable_nodes_are_no_cards(launcher, tmp_path):
    node(tmp_path, 0, cpu_cores_count=16, simd_count=0, gfx_target_version=0)
    node(tmp_path, 1, simd_count=64)  # no target: an old kernel
    node(tmp_path, 2, simd_count=0, gfx_target_version=110000)
    (tmp_path / "3" / "properties").mkdir(parents=True)  # cannot be read
    (tmp_path / "4").mkdir()
    (tmp_path / "4" / "properties").write_text("simd_count many\ngfx_target_version 110000\n")
    (tmp_path / "5").mkdir()
    (tmp_path / "5" / "properties").write_bytes(b"")
    assert launcher.radeon_targets(tmp_path) == []
    assert launcher.radeon_targets(tmp_path / "absent") == []


def test_cards_come_in_node_order(launcher, tmp_path):
    node(tmp_path, 10, simd_count=4, gfx_target_version=120000)
    node(tmp_path, 2, simd_count=4, gfx_target_version=110000)
    assert launcher.radeon_targets(tmp_path) == ["gfx1100", "gfx1200"]


def fake_smi(folder: Path, output: str, code: int = 0) -> str:
    path = folder / "nvidia-smi"
    path.write_text(f"#!/bin/sh\necho '{output}'\nexit {code}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.skipif(sys.platform == "win32", reason="a shell script stands in for nvidia-smi")
@pytest.mark.parametrize(
    ("output", "code", "found"),
    [
        ("GPU 0: some card (UUID: GPU-1)", 0, True),
        ("NVIDIA-SMI has failed", 9, False),
        ("No devices", 0, False),
    ],
)
def test_an_nvidia_driver_must_answer(launcher, tmp_path, monkeypatch, output, code, found):
    path = fake_smi(tmp_path, output, code)
    monkeypatch.setattr(launcher.shutil, "which", lambda name: path)
    monkeypatch.setattr(launcher.ctypes, "CDLL", _no_library)
    assert launcher.nvidia_driver() is found


def _no_library(name: str):
    raise OSError(f"{name}: cannot open shared object file")


@pytest.mark.parametrize(("init", "cards", "found"), [(0, 1, True), (0, 0, False), (100, 1, False)])
def test_the_drivers_library_must_see_a_card(launcher, monkeypatch, init, cards, found):
    class Cuda:
        def cuInit(self, flags):
            return init

        def cuDeviceGetCount(self, count):
            count._obj.value = cards
            return 0

    monkeypatch.setattr(launcher.shutil, "which", lambda name: None)
    monkeypatch.setattr(launcher.ctypes, "CDLL", lambda name: Cuda())
    assert launcher.nvidia_driver() is found


@pytest.mark.parametrize(
    ("nvidia", "radeons", "build"),
    [(True, ["gfx1100"], "cuda"), (False, ["gfx1100"], "rocm"), (False, [], "cpu")],
)
def test_the_build_follows_the_card(launcher, monkeypatch, nvidia, radeons, build):
    monkeypatch.setattr(launcher, "nvidia_driver", lambda: nvidia)
    monkeypatch.setattr(launcher, "radeon_targets", lambda: radeons)
    assert launcher.detect_build() == build


def test_launcher_options_end_at_the_command(launcher):
    split = launcher.split_arguments
    assert split(["serve", "--port", "1"]) == ({}, ["serve", "--port", "1"])
    assert split(["--torch", "cpu", "--torch-index=U", "demo", "--torch", "x"]) == (
        {"torch": "cpu", "torch_index": "U"},
        ["demo", "--torch", "x"],
    )
    for wrong in (["--torch", "metal"], ["--torch"], ["--torch-index"]):
        with pytest.raises(launcher.LauncherError):
            split(wrong)


@pytest.mark.parametrize(
    ("version", "fine"),
    [((3, 10), False), ((3, 11), True), ((3, 13, 9), True), ((3, 14), False), ((2, 7), False)],
)
def test_python_versions(launcher, version, fine):
    assert launcher.supported(version) is fine


def test_an_unsupported_python_says_which_to_install(launcher, monkeypatch, capsys):
    monkeypatch.setattr(launcher, "supported", lambda version: False)
    monkeypatch.setattr(launcher, "find_python", lambda: None)
    assert launcher.main(["demo"]) == 1
    assert "3.11 to 3.13" in capsys.readouterr().err


def test_an_install_is_done_once(launcher, checkout):
    launcher.install({}, dev=False)
    assert launcher.steps and launcher.up_to_date({}, dev=False)
    launcher.steps.clear()
    launcher.install({}, dev=False)
    assert launcher.steps == []


def test_an_interrupted_install_is_done_again(launcher, checkout, monkeypatch):
    launcher.install({}, dev=False)
    (checkout / "pyproject.toml").write_text("[project]\nversion = '2'\n")

    def interrupted(line, failure):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(launcher, "run_step", interrupted)
        launcher.install({}, dev=False)
    (checkout / "pyproject.toml").write_text("[project]\n")  # even back at the state of the first install
    assert not launcher.up_to_date({}, dev=False)
    launcher.install({}, dev=False)
    assert launcher.up_to_date({}, dev=False)


@pytest.mark.parametrize("damage", ["", "[]", '{"root": '])
def test_a_damaged_marker_means_not_installed(launcher, checkout, damage):
    launcher.install({}, dev=False)
    launcher.MARKER.write_text(damage)
    assert not launcher.up_to_date({}, dev=False)


def test_a_moved_checkout_is_installed_again(launcher, checkout):
    launcher.install({}, dev=False)
    marker = json.loads(launcher.MARKER.read_text())
    launcher.MARKER.write_text(json.dumps(marker | {"root": "/elsewhere"}))
    assert not launcher.up_to_date({}, dev=False)


def test_tests_need_more_and_keep_it(launcher, checkout):
    launcher.install({}, dev=False)
    assert not launcher.up_to_date({}, dev=True)
    launcher.install({}, dev=True)
    assert any(str(line[-1]).endswith("[dev]") for line in launcher.steps)
    assert launcher.up_to_date({}, dev=True) and launcher.up_to_date({}, dev=False)
    (checkout / "pyproject.toml").write_text("[project]\nversion = '2'\n")
    launcher.install({}, dev=False)
    assert launcher.up_to_date({}, dev=True)


def test_the_choice_of_torch_is_remembered(launcher, checkout, capsys):
    launcher.install({"torch": "rocm", "torch_index": "https://wheels.example"}, dev=False)
    assert any("https://wheels.example" in line for line in launcher.steps)
    assert launcher.up_to_date({}, dev=False)
    assert not launcher.up_to_date({"torch": "cpu"}, dev=False)
    launcher.steps.clear()
    (checkout / "pyproject.toml").write_text("[project]\nversion = '2'\n")
    launcher.install({}, dev=False)
    assert any("https://wheels.example" in line for line in launcher.steps)


def test_a_build_without_its_index_is_said(launcher, checkout, capsys):
    launcher.install({"torch": "rocm"}, dev=False)
    assert "rocm build of torch" in capsys.readouterr().err
    assert [line for line in launcher.steps if launcher.TORCH in line and "--index-url" not in line]


def test_torch_that_is_there_is_kept(launcher, checkout, monkeypatch):
    monkeypatch.setattr(launcher, "probe", lambda code: "2.11.0")
    launcher.install({}, dev=False)
    assert not any(launcher.TORCH in line for line in launcher.steps)


def test_a_second_install_waits_for_the_first(launcher, checkout, capsys):
    order = []

    def second():
        with launcher.install_lock():
            order.append("second")

    with launcher.install_lock():
        thread = threading.Thread(target=second)
        thread.start()
        time.sleep(0.5)
        order.append("first")
    thread.join(10)
    assert order == ["first", "second"]
    assert "another install" in capsys.readouterr().err


def test_a_failed_step_names_its_command(launcher):
    with pytest.raises(launcher.LauncherError, match=r"did not work \(exit 3 of "):
        launcher.run_step([sys.executable, "-c", "raise SystemExit(3)"], "did not work")


def test_the_script_needs_only_the_standard_library():
    line = [sys.executable, "-I", "-S", str(ROOT / "strata"), "--torch", "metal"]  # -S: no site-packages
    answer = subprocess.run(line, capture_output=True, text=True)
    assert (answer.returncode, answer.stderr) == (
        1,
        "strata: --torch metal: the builds are auto, cpu, cuda, rocm\n",
    )


@pytest.mark.skipif(not hasattr(signal, "pthread_sigmask"), reason="needs signals")
def test_ctrl_c_is_held_back_while_python_starts(launcher, monkeypatch):
    class Gone(Exception):
        """What comes after `execv`."""

    def execv(*_):
        masks.append(signal.pthread_sigmask(signal.SIG_BLOCK, []))
        raise Gone

    masks = []
    monkeypatch.setattr(launcher.os, "execv", execv)
    try:
        with pytest.raises(Gone):
            launcher.become(["python"])
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    assert masks == [{signal.SIGINT}]
