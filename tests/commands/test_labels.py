"""``nvdp labels``: lines and JSON, the configurations that it takes, and exit codes."""

from __future__ import annotations

import json

import pytest

from nvdp.__main__ import main

SHARED = """\
sharing:
  timeSlicing:
    resources: [{name: nvidia.com/gpu, replicas: 4}]
"""


@pytest.fixture
def nvdp(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("NVDP_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("NVDP_RUN_DIR", str(tmp_path / "run"))
    monkeypatch.delenv("CONFIG_FILE", raising=False)

    def call(*arguments: str) -> tuple[int, str, str]:
        code = main(["labels", *arguments])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return call


def test_labels_are_lines_in_the_order_of_their_names(nvdp):
    code, out, err = nvdp("--node", "dgx-h100")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    keys = [line.partition("=")[0] for line in lines]
    assert keys == sorted(keys)
    assert "nvidia.com/gpu.product=NVIDIA-H100-80GB-HBM3" in lines
    assert "nvidia.com/gpu.mode=compute" in lines


def test_json_has_the_same(nvdp):
    _, out, _ = nvdp("--node", "dgx-h100")
    _, answer, _ = nvdp("--node", "dgx-h100", "--json")
    assert [f"{key}={value}" for key, value in json.loads(answer)["labels"].items()] == out.splitlines()


@pytest.mark.parametrize("way", ["flag", "environment"])
def test_the_configuration_is_that_of_run(nvdp, tmp_path, monkeypatch, way):
    file = tmp_path / "config.yaml"
    file.write_text(SHARED)
    if way == "environment":
        monkeypatch.setenv("CONFIG_FILE", str(file))
    _, out, _ = nvdp("--node", "t4", *(["--config-file", str(file)] if way == "flag" else []))
    assert "nvidia.com/gpu.product=Tesla-T4-SHARED" in out.splitlines()


def test_a_mig_node_has_a_group_for_each_profile(nvdp):
    _, out, _ = nvdp("--node", "h200-mig", "--mig-strategy", "mixed", "--json")
    labels = json.loads(out)["labels"]
    assert labels["nvidia.com/mig.strategy"] == "mixed"
    assert {key for key in labels if key.endswith(".engines.copy")}


def test_a_simulated_node_is_asked_as_the_daemon_would(nvdp):
    code, out, _ = nvdp("--simulated-node", "t4")
    assert code == 0
    assert "nvidia.com/gpu.count=1" in out.splitlines()


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["--simulated-node", "{}/missing.yaml"], 1, "libnvidia-ml.so.1 not found"),
        (["--node", "nowhere"], 1, "nowhere: there is no such node file"),
        (["--node", "{}/bad.yaml"], 1, "bad.yaml"),
        (["--config-file", "{}/nowhere.yaml"], 1, "nowhere.yaml: cannot be read"),
        (["--node", "t4", "--config-file", "{}/bad.yaml"], 2, "bad.yaml:1:1: gpu"),
        (["--node", "t4", "--config-dir", "{}"], 2, "give --config-file FILE"),
        (["--jsno"], 2, "--jsno"),
    ],
)
def test_what_goes_wrong_is_one_line_and_a_code(nvdp, tmp_path, arguments, code, told):
    (tmp_path / "missing.yaml").write_text("driver: {state: missing}")
    (tmp_path / "bad.yaml").write_text("gpu: many")
    got, out, err = nvdp(*(argument.replace("{}", str(tmp_path)) for argument in arguments))
    assert (got, out) == (code, "")
    assert told in err
    assert err.count("\n") == 1
