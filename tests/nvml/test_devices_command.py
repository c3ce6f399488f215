"""``nvdp devices``: table, JSON and node file, and the exit codes."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys

import msgspec
import pytest

from nvdp.__main__ import main
from nvdp.model.inventory import Fault, Gpu, Inventory
from nvdp.nvml.frames import Scanned
from nvdp.nvml.simulated.export import build_node_file


@pytest.fixture
def nvdp(capsys):
    def call(*arguments: str) -> tuple[int, str, str]:
        code = main(["devices", *arguments])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return call


def test_the_table_is_plain_when_nobody_watches(nvdp) -> None:
    code, out, err = nvdp("--node", "t4")
    assert (code, err) == (0, "")
    summary, header, row = out.splitlines()
    assert summary == "driver 550.163.01, CUDA 12.4, 1 GPU"
    assert header.split() == ["INDEX", "UUID", "PCI", "PRODUCT", "MEMORY", "CC", "NUMA", "MIG", "STATE"]
    assert row.endswith(
        "GPU-23aa3987-b908-2356-30fe-cb44a7922a29  0000:00:04.0  Tesla T4  15 GiB  7.5  -     unsupported  ok"
    )
    assert row.index("Tesla") == header.index("PRODUCT")


@pytest.mark.parametrize(
    ("text", "platform", "told"),
    [
        ("platform: wsl\ngpus: [{model: t4, count: 2}]", "wsl", "1 GPU, WSL2: all GPUs are one device"),
        ("platform: tegra", "tegra", "1 GPU, Tegra: nothing is known of the GPU of the chip"),
    ],
)
def test_a_system_with_one_device_for_all_says_so(nvdp, tmp_path, text, platform, told) -> None:
    node = tmp_path / "node.yaml"
    node.write_text(text)
    out = nvdp("--node", str(node))[1]
    assert out.splitlines()[0].endswith(told)
    assert json.loads(nvdp("--node", str(node), "--json")[1])["platform"] == platform


def test_gpus_that_ail_are_listed_with_the_reason_and_are_no_failure(nvdp, tmp_path) -> None:
    node = tmp_path / "node.yaml"
    node.write_text(
        "gpus: [{model: t4, count: 2}]\nlost: [0]\nfaults: [{call: nvmlDeviceGetName, gpu: 1, error: 999}]\n"
    )
    code, out, _ = nvdp("--simulated-node", str(node))
    assert code == 0
    lost, failing = out.splitlines()[2:]
    assert lost.endswith("unreadable: nvmlDeviceGetHandleByIndex: the GPU has fallen off the bus or cannot be reached")
    assert failing.endswith("CallFailed: nvmlDeviceGetName: the driver reports an internal error")
    _, out, _ = nvdp("--simulated-node", str(node), "--json")
    answer = json.loads(out)
    assert [(gpu["index"], gpu["healthy"], gpu["cause"]) for gpu in answer["gpus"]] == [(1, False, "CallFailed")]
    assert [(gpu["index"], gpu["error"]) for gpu in answer["unreadable"]] == [(0, "GpuIsLost")]


def test_json_has_every_fact(nvdp) -> None:
    code, out, err = nvdp("--simulated-node", "a10", "--json")
    assert (code, err) == (0, "")
    answer = json.loads(out)
    assert answer["driver"] == {"version": "580.65.06", "cudaVersion": "13.0"}
    assert answer["unreadable"] == []
    assert len(answer["gpus"]) == 4
    assert answer["gpus"][3] == {
        "index": 3,
        "uuid": "GPU-d245c7d3-28ca-2e68-0976-f0ddf2384d0f",
        "pci": "0000:ca:00.0",
        "minor": 3,
        "product": "NVIDIA A10",
        "memoryBytes": 23028 << 20,
        "computeCapability": "8.6",
        "numaNode": 1,
        "computeMode": "Default",
        "mig": "unsupported",
        "migPending": None,
        "instances": None,
        "healthy": True,
        "cause": None,
        "text": None,
    }


MIG_NODE = """
gpus:
- {model: a100-sxm4-80gb, uuid: [GPU-0, GPU-1, GPU-2], count: 3}
layouts:
- {gpu: 0, migPending: disabled, instances: [{profile: 1g.10gb, uuid: MIG-0}, null, {profile: 1c.3g.40gb, uuid: MIG-2}]}
- {gpu: 1, instances: [{profile: 1g.10gb+me, uuid: MIG-3}, 2g.20gb]}
- {gpu: 2, instances: [{profile: 7g.80gb, uuid: MIG-4}]}
faults:
- {call: nvmlDeviceGetAttributes, gpu: 1, instance: 0, error: 999}
- {call: nvmlDeviceGetUUID, gpu: 1, instance: 1, error: 999}
- {call: nvmlDeviceGetMinorNumber, gpu: 2, error: 999}
"""


def test_mig_devices_stand_below_their_gpu_and_a_pending_mode_with_what_to_do(nvdp, tmp_path) -> None:
    node = tmp_path / "node.yaml"
    node.write_text(MIG_NODE)
    code, out, _ = nvdp("--simulated-node", str(node))
    assert code == 0
    summary, header, *rows, remedy = out.splitlines()
    assert summary == "driver 580.65.06, CUDA 13.0, 3 GPUs, 4 MIG devices"
    assert [row.split()[:2] for row in rows] == [
        ["0", "GPU-0"],
        ["0:0", "MIG-0"],
        ["0:2", "MIG-2"],
        ["1", "GPU-1"],
        ["1:0", "MIG-3"],
        ["1:1", "-"],
        ["2", "GPU-2"],
        ["2:0", "MIG-4"],
    ]
    start = header.index("PRODUCT")
    assert rows[1][start:].split() == ["MIG", "1g.10gb", "9.5", "GiB", "-", "-", "-", "ok"]
    assert "MIG 1c.3g.40gb " in rows[2]
    assert rows[4].endswith("CallFailed: MIG-3: nvmlDeviceGetAttributes: the driver reports an internal error")
    assert rows[5].endswith("unreadable: nvmlDeviceGetUUID: the driver reports an internal error")
    assert rows[7].endswith("CallFailed: as its GPU")
    assert remedy == "GPU 0 (GPU-0): MIG mode is enabled, disabled is pending: needs a GPU reset: nvdp pause"
    first, second, _ = json.loads(nvdp("--simulated-node", str(node), "--json")[1])["gpus"]
    assert (first["mig"], first["migPending"]) == ("enabled", "disabled")
    assert first["instances"][1] == {
        "index": 2,
        "uuid": "MIG-2",
        "gpuInstance": 17,
        "computeInstance": 0,
        "profile": "1c.3g.40gb",
        "memoryBytes": 38912 << 20,
        "text": None,
    }
    assert [(one["uuid"], one["text"] is None) for one in second["instances"]] == [("MIG-3", False), (None, False)]


MODES_NODE = """
gpus: [{model: t4, count: 4, uuid: [GPU-0, GPU-1, GPU-2, GPU-3], computeMode: [ExclusiveProcess, Default, Prohibited,
  ExclusiveProcess]}]
faults: [{call: nvmlDeviceGetComputeMode, gpu: 1, error: NotSupported}]
"""


def test_every_compute_mode_but_the_default_is_told_with_what_it_means(nvdp, tmp_path) -> None:
    node = tmp_path / "node.yaml"
    node.write_text(MODES_NODE)
    exclusive, prohibited = nvdp("--simulated-node", str(node))[1].splitlines()[-2:]
    meaning = "one process at a time may compute there, as which all clients of MPS count"
    assert exclusive == f"compute mode ExclusiveProcess on GPU 0, 3: {meaning}"
    assert prohibited == "compute mode Prohibited on GPU 2: no process may compute there"
    answer = json.loads(nvdp("--simulated-node", str(node), "--json")[1])
    modes = [gpu["computeMode"] for gpu in answer["gpus"]]
    assert modes == ["ExclusiveProcess", None, "Prohibited", "ExclusiveProcess"]


def test_an_exported_node_has_its_compute_modes(nvdp, tmp_path, asking) -> None:
    node, exported = tmp_path / "node.yaml", tmp_path / "exported.yaml"
    node.write_text(MODES_NODE)
    exported.write_text(nvdp("--simulated-node", str(node), "--export")[1])
    assert asking(simulated=str(exported)).scan() == asking(simulated=str(node)).scan()


@pytest.mark.parametrize("driver", ["", "driver: {migMonitor: true}"])
def test_an_exported_node_has_its_mig_devices(nvdp, tmp_path, asking, driver) -> None:
    node, exported = tmp_path / "node.yaml", tmp_path / "exported.yaml"
    node.write_text(MIG_NODE + driver)
    exported.write_text(nvdp("--simulated-node", str(node), "--export")[1])
    first, second = asking(simulated=str(node)).scan(), asking(simulated=str(exported)).scan()
    assert isinstance(first, Scanned)
    assert isinstance(second, Scanned)
    assert second.inventory == first.inventory


def test_a_node_without_gpus_is_an_answer_too(nvdp, tmp_path) -> None:
    (tmp_path / "none.yaml").write_text("gpus: []\n")
    assert nvdp("--simulated-node", str(tmp_path / "none.yaml")) == (0, "driver 580.65.06, CUDA 13.0, 0 GPUs\n", "")


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (
            ["--simulated-node", "nowhere"],
            1,
            "nowhere: there is no such node file, and no node of that name; there are a10",
        ),
        (
            ["--container-driver-root", "/nonexistent"],
            1,
            "libnvidia-ml.so.1 not found under / (searched 7 directories)",
        ),
        (["--json", "--export"], 2, "--json and --export exclude each other"),
        (["--jsno"], 2, "--jsno"),
    ],
)
def test_what_goes_wrong_is_one_line_and_a_code(nvdp, arguments, code, told) -> None:
    got, out, err = nvdp(*arguments)
    assert (got, out) == (code, "")
    assert told in err
    assert err.count("\n") == 1


def test_the_driver_root_is_the_one_of_the_daemon(nvdp, fake_driver, monkeypatch) -> None:
    fake_driver.install()
    for arguments, environment in (
        (["--container-driver-root", str(fake_driver.root)], {}),
        ([], {"CONTAINER_DRIVER_ROOT": str(fake_driver.root)}),
    ):
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        code, out, _ = nvdp(*arguments)
        assert code == 0
        assert out.startswith("driver 570.1.1, CUDA 12.8, 4 GPUs\n")


@pytest.mark.parametrize("columns", [20, 80, 200])
def test_a_terminal_gets_one_line_for_each_gpu_however_narrow_it_is(columns: int) -> None:
    shown = show_on_terminal("--simulated-node", "dgx-h100", columns=columns)
    assert "\x1b[32mok" in shown
    _, header, *rows = (re.sub(r"\x1b\[[\d;]*m", "", line).rstrip() for line in shown.splitlines())
    assert header.split() == ["INDEX", "UUID", "PCI", "PRODUCT", "MEMORY", "CC", "NUMA", "MIG", "STATE"]
    assert len(rows) == 8
    assert rows[0] == (
        "0      GPU-5faf8d00-dfc8-ced2-e2ae-b1837dc1308b  0000:1b:00.0  NVIDIA H100 80GB HBM3  80 GiB  9.0  0"
        "     disabled  ok"
    )


def test_a_long_reason_is_folded_into_its_column(tmp_path) -> None:
    node = tmp_path / "node.yaml"
    node.write_text("gpus: [{model: t4, count: 2}]\nlost: [0]\n")
    shown = show_on_terminal("--simulated-node", str(node), columns=130)
    lines = [re.sub(r"\x1b\[[\d;]*m", "", line).rstrip() for line in shown.splitlines()[2:]]
    at = lines[0].index("unreadable:")
    words = " ".join(line[at:] for line in lines if not line.startswith("1 ")).split()
    assert " ".join(words).endswith("the GPU has fallen off the bus or cannot be reached")
    assert max(map(len, lines)) <= 130


def show_on_terminal(*arguments: str, columns: int) -> str:
    ours, theirs = pty.openpty()
    environment = {**os.environ, "COLUMNS": str(columns), "TERM": "xterm"}
    environment.pop("NO_COLOR", None)
    command = [sys.executable, "-m", "nvdp", "devices", *arguments]
    subprocess.run(command, stdout=theirs, env=environment, check=True)
    os.close(theirs)
    shown = os.read(ours, 65536).decode()
    os.close(ours)
    return shown


@pytest.mark.parametrize("node", ["dgx-h100", "h200-mig", "a100", "a10", "t4", "mixed"])
def test_an_exported_node_is_the_same_machine_to_a_scan(nvdp, tmp_path, asking, node) -> None:
    code, out, _ = nvdp("--simulated-node", node, "--export")
    assert code == 0
    exported = tmp_path / "node.yaml"
    exported.write_text(out)
    first, second = asking(simulated=node).scan(), asking(simulated=str(exported)).scan()
    assert isinstance(first, Scanned)
    assert isinstance(second, Scanned)
    assert second.inventory == first.inventory


def test_an_exported_real_node_is_the_same_machine_to_a_scan(fake_driver, tmp_path, asking) -> None:
    fake_driver.install()
    fake_driver.configure(
        "cards 0 1 2 3 4",
        "fail nvmlDeviceGetName 16 0",
        "fail nvmlDeviceGetUUID 15 1",
        "fail nvmlDeviceGetHandleByIndex 15 2",
        "fail nvmlDeviceGetMinorNumber 3 3",
        "fail nvmlDeviceGetMemoryInfo 3 3",
        "fail nvmlDeviceGetPciInfo 3 3",
        "fail nvmlDeviceGetPciInfo 999 4",
    )
    real = asking(driver_root=str(fake_driver.root)).scan()
    assert isinstance(real, Scanned)
    exported = tmp_path / "node.yaml"
    exported.write_text(build_node_file(real.inventory))
    simulated = asking(simulated=str(exported)).scan()
    assert isinstance(simulated, Scanned)
    assert simulated.inventory == real.inventory


def test_cards_that_a_scan_leaves_out_or_gives_up_on_keep_their_place(tmp_path, asking) -> None:
    one = Gpu(uuid="GPU-1", index=1, pci="0000:17:00.0", minor=1, product="P", memory_bytes=1, compute_capability="1.0")
    hung = msgspec.structs.replace(
        one,
        uuid="GPU-2",
        index=2,
        pci="0000:18:00.0",
        fault=Fault(call="nvmlDeviceGetName", kind="CallTimeout", text=""),
    )
    from nvdp.model.inventory import Driver

    text = build_node_file(Inventory(driver=Driver(version="1.2", cuda_version="3.4"), gpus=(one, hung)))
    path = tmp_path / "node.yaml"
    path.write_text(text)
    assert "hang: true" in text
    path.write_text(text.replace("hang: true", "error: 999"))
    scanned = asking(simulated=str(path)).scan()
    assert isinstance(scanned, Scanned)
    assert [(gpu.uuid, gpu.index) for gpu in scanned.inventory.gpus] == [("GPU-1", 1), ("GPU-2", 2)]
