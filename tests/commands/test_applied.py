"""What commands look at where the node's label chooses: the configuration applied last, or one that is named."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from nvdp.__main__ import main
from nvdp.host.state import AppliedConfig, State, StateDirectory
from nvdp.model.chosen import Chosen

TEXT = "version: v1\nflags: {migStrategy: mixed}\n"
SOURCE = "configmap nvdp/configs:mixed"


@pytest.fixture
def by_label(monkeypatch, tmp_path):
    """The environment of a pod whose node's label chooses; gives its state directory."""
    monkeypatch.setenv("NVDP_CONFIG_MAP", "configs")
    monkeypatch.setenv("NODE_NAME", "n")
    monkeypatch.setenv("NVDP_STATE_DIR", str(tmp_path))
    monkeypatch.delenv("CONFIG_FILE", raising=False)
    return tmp_path


def apply(directory):
    config = AppliedConfig(text=TEXT, source=SOURCE, hash="x", chosen=Chosen("mixed", "label a=mixed"))
    StateDirectory(directory, log=lambda *_, **__: None).save_state(State(config=config))


def test_show_shows_what_was_applied_last(by_label, capsys):
    apply(by_label)
    assert main(["config", "show"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"# {SOURCE} sha256:")
    assert "migStrategy: mixed" in out


def test_plan_judges_what_was_applied_last_or_the_file_that_is_named(by_label, capsys, tmp_path):
    apply(by_label)
    assert main(["plan", "--node", "dgx-h100", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["configuration"]["source"] == SOURCE
    file = tmp_path / "file.yaml"
    file.write_text("version: v1\n")
    assert main(["plan", "--node", "dgx-h100", "--json", "--config", str(file)]) == 0
    assert json.loads(capsys.readouterr().out)["configuration"]["source"] == str(file)


@pytest.mark.parametrize(
    ("command", "remedy"),
    [(["config", "show"], "give --config-file FILE"), (["plan", "--node", "dgx-h100"], "give --config FILE")],
)
def test_where_nothing_was_applied_yet_a_file_is_to_be_named(by_label, capsys, command, remedy):
    assert main(command) == 2
    text = "the node's label chooses the configuration, and none was applied here yet"
    assert capsys.readouterr().err == f"{text}; {remedy}\n"


def test_a_file_by_flag_is_shown_although_the_label_chooses(by_label, capsys, tmp_path):
    file = tmp_path / "file.yaml"
    file.write_text("version: v1\n")
    assert main(["config", "show", "--config-file", str(file)]) == 0
    assert capsys.readouterr().out.startswith(f"# {file} sha256:")


@pytest.mark.parametrize("command", ["run", "mps"])
@pytest.mark.usefixtures("by_label")
def test_options_that_do_not_fit_are_wrong_usage_before_anything_is_asked(command):
    asked = [sys.executable, "-m", "nvdp", command, "--config-file", "/nowhere"]
    done = subprocess.run(asked, capture_output=True, text=True, check=False, timeout=30)
    assert done.returncode == 2
    text = "flag --config-file and environment NVDP_CONFIG_MAP exclude each other"
    assert done.stderr.startswith(text)
