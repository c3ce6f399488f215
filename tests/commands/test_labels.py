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


FILE = """\
flags:
  useNodeFeatureAPI: false
  gfd: {outputFile: %s}
"""


@pytest.fixture
def written(tmp_path):
    """A file of labels, and the configuration that says where it is."""
    path = tmp_path / "gfd"
    path.write_text("nvidia.com/gpu.count=1\nnvidia.com/gpu.mode=compute\n")
    config = tmp_path / "config.yaml"
    config.write_text(FILE % path)
    return path, str(config)


def test_labels_of_a_file_are_taken_away_and_named(nvdp, written):
    path, config = written
    arguments = ("--remove", "--write-labels", "auto", "--node-name", "n", "--config-file", config)
    code, out, err = nvdp(*arguments)
    assert (code, out) == (0, "nvidia.com/gpu.count\nnvidia.com/gpu.mode\n")
    assert err == f"{path}: 2 labels removed; an nvdp that runs may write them again\n"
    assert not path.exists()
    code, out, err = nvdp(*arguments)
    assert (code, out) == (0, "")
    assert err.startswith(f"{path}: nothing there is of nvdp; ")


def test_an_nvdp_that_runs_is_told_that_labels_were_taken_away(nvdp, written, tmp_path):
    (tmp_path / "run").mkdir()
    _, config = written
    code, out, err = nvdp("--remove", "--write-labels", "file", "--config-file", config, "--json")
    assert (code, json.loads(out)["removed"]) == (0, ["nvidia.com/gpu.count", "nvidia.com/gpu.mode"])
    assert "nvdp writes none until it is started anew" in err
    assert [entry.name for entry in (tmp_path / "run").iterdir()] == ["labels-removed"]


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        ([], 2, "--write-labels"),
        (["--node", "t4", "--write-labels", "file"], 2, "exclude each other"),
        (["--write-labels", "node"], 2, "--node-name"),
        (["--write-labels", "node", "--node-name", "n", "--kubeconfig", "{}/nowhere"], 1, "nowhere"),
        (["--write-labels", "file", "--config-file", "{}/config.yaml"], 1, "something else than labels"),
    ],
)
def test_what_cannot_be_taken_away_is_said_in_one_line(nvdp, written, arguments, code, told):
    path, _ = written
    path.write_text("somebody=else\n")
    (path.parent / "run").mkdir()
    found, out, err = nvdp("--remove", *(one.format(path.parent) for one in arguments))
    assert (found, out) == (code, "")
    assert told in err
    assert err.count("\n") == 1
    assert path.exists()
    assert list((path.parent / "run").iterdir()) == []
