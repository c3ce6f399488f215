"""What nvdp says about the container runtime's configuration, by what the files on the host hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from nvdp.host.runtime_config import RuntimeCheck, load_runtime_files
from nvdp.model.listing import DeviceListStrategy
from nvdp.model.reasons import Reason
from nvdp.planning.runtime_fit import judge_runtime
from tests.host.runtime_files import CASES, CRI, Case, write_case

ENVVAR, MOUNTS, ANNOTATIONS, CRI_FIELD = (
    DeviceListStrategy.ENVVAR,
    DeviceListStrategy.VOLUME_MOUNTS,
    DeviceListStrategy.CDI_ANNOTATIONS,
    DeviceListStrategy.CDI_CRI,
)
BY_ENV = "accept-nvidia-visible-devices-envvar-when-unprivileged"
BY_MOUNTS = "accept-nvidia-visible-devices-as-volume-mounts"
OFF = f"version = 2\n[{CRI}]\nenable_cdi = false\n"


class Lines:
    """A log that keeps its lines."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, dict[str, object]]] = []

    def __call__(self, reason: Reason, msg: str, /, *, level: object = None, **fields: object) -> None:
        assert reason is Reason.RUNTIME_UNSUITED
        self.seen.append((msg, fields))


@pytest.fixture
def etc(tmp_path: Path) -> Path:
    for name in ("containerd", "nvidia-container-runtime"):
        (tmp_path / name).mkdir()
    return tmp_path


def judge(etc: Path, *strategies: DeviceListStrategy):
    return judge_runtime(load_runtime_files(etc), strategies)


def with_containerd(etc: Path, text: str) -> Path:
    write_case(Case(text, heeds=False), etc / "containerd")
    return etc


def with_nvidia(etc: Path, text: str) -> Path:
    (etc / "nvidia-container-runtime/config.toml").write_text(text)
    return etc


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_it_says_exactly_when_containerd_drops_cdi_devices(etc: Path, case: Case):
    write_case(case, etc / "containerd")
    found = judge(etc, CRI_FIELD)
    assert [one.file.startswith("/etc/containerd/") for one in found] == [True] * (not case.heeds)
    assert [one.key for one in judge(etc, ANNOTATIONS)] == [one.key for one in found], "they name CDI devices as well"
    assert judge(etc, ENVVAR, MOUNTS) == (), "nothing is sent that it could drop"


def test_the_nvidia_runtime_may_heed_an_annotation_that_containerd_ignores(etc: Path):
    (alone,) = judge(with_containerd(etc, OFF), ANNOTATIONS)
    assert alone.text.endswith("pods start without their GPU, and no error says so")
    with_nvidia(etc, f"{BY_ENV} = false\n")
    (beside,) = judge(etc, ANNOTATIONS)
    assert beside.text == f"{alone.text}, unless the NVIDIA runtime heeds the annotation"
    assert judge(etc, CRI_FIELD, ANNOTATIONS)[0].text == alone.text, "only the field of cdi-cri is sent"


@pytest.mark.parametrize(
    ("line", "count"), [("", 0), ("enable_cdi = true\n", 0), ("enable_cdi = false\n", 1)], ids=["not set", "on", "off"]
)
def test_containerd_2_heeds_cdi_devices_unless_its_file_says_no(etc: Path, line: str, count: int):
    found = judge(with_containerd(etc, f"version = 3\n[plugins.'io.containerd.cri.v1.runtime']\n{line}"), CRI_FIELD)
    assert [one.key for one in found] == ['plugins."io.containerd.cri.v1.runtime".enable_cdi'] * count


def test_the_finding_names_file_key_effect_and_cure(etc: Path):
    (found,) = judge(with_containerd(etc, OFF), ENVVAR, CRI_FIELD)
    assert found.file == "/etc/containerd/config.toml"
    assert found.key == f"{CRI}.enable_cdi"
    assert found.text == (
        f"containerd drops CDI devices: {CRI}.enable_cdi is false in /etc/containerd/config.toml; "
        "pods start without their GPU, and no error says so"
    )
    assert found.remedy == (
        f"set {CRI}.enable_cdi = true in /etc/containerd/config.toml on the node and restart containerd"
    )


def test_where_the_key_is_not_set_only_containerd_up_to_1_7_drops_them(etc: Path):
    (found,) = judge(with_containerd(etc, "version = 2\n"), CRI_FIELD)
    assert found.text.startswith("containerd up to 1.7 drops CDI devices")


def test_an_import_that_cannot_be_seen_may_turn_it_on(etc: Path):
    hidden = with_containerd(etc, f'imports = ["/opt/drop-ins/*.toml", "../other/x.toml"]\n{OFF}')
    assert judge(hidden, CRI_FIELD) == ()


@pytest.mark.parametrize("imports", ['[7, "conf.d/nothing.toml"]', '["a**b.toml"]', '"conf.d"'])
def test_imports_that_lead_to_no_file_change_nothing(etc: Path, imports: str):
    found = judge(with_containerd(etc, f"imports = {imports}\n{OFF}"), CRI_FIELD)
    assert [one.file for one in found] == ["/etc/containerd/config.toml"]


@pytest.mark.parametrize("text", ["", "x" * 2_000_000, "[" * 100_000, "version = 2\nversion = 3\n", "\xff"])
def test_a_node_without_files_or_with_bad_ones_raises_nothing(etc: Path, text: str):
    if not text:
        assert judge(etc / "nowhere", CRI_FIELD, ENVVAR) == ()
        return
    found = judge(with_nvidia(with_containerd(etc, text), text), CRI_FIELD)
    assert [one.text.startswith(f"{one.file} cannot be read") for one in found] == [True, True]


def test_what_is_no_file_is_told_and_not_opened(etc: Path):
    (etc / "containerd/config.toml").mkdir()
    (found,) = judge(etc, CRI_FIELD)
    assert found.text.endswith("is a directory; a file is needed")


@pytest.mark.parametrize(
    ("text", "strategies", "keys"),
    [
        ("", (CRI_FIELD,), [BY_ENV]),
        (f"{BY_ENV} = true\n", (ENVVAR,), [BY_ENV]),
        (f"{BY_ENV} = false\n", (CRI_FIELD,), []),
        (f"{BY_ENV} = false\n", (ENVVAR,), [BY_ENV]),
        (f"{BY_ENV} = false\n", (ENVVAR, CRI_FIELD), []),
        (f"{BY_ENV} = false\n", (MOUNTS,), [BY_MOUNTS]),
        (f"{BY_ENV} = false\n{BY_MOUNTS} = true\n", (MOUNTS,), []),
        (f"{BY_MOUNTS} = true\n", (ENVVAR, MOUNTS), [BY_ENV]),
        (f"{BY_MOUNTS} = false\n", (MOUNTS,), [BY_MOUNTS, BY_ENV]),
    ],
)
def test_the_nvidia_runtime_takes_devices_as_they_are_given_and_from_nobody_else(
    etc: Path, text: str, strategies: tuple[DeviceListStrategy, ...], keys: list[str]
):
    found = judge(with_nvidia(etc, text), *strategies)
    assert [one.key for one in found] == keys
    assert all(one.file == "/etc/nvidia-container-runtime/config.toml" for one in found)


def test_closing_the_environment_comes_after_a_strategy_that_does_without_it(etc: Path):
    with_nvidia(etc, "")
    assert [one.remedy.startswith("first set deviceListStrategy") for one in judge(etc, ENVVAR)] == [True]
    (closing,) = judge(etc, CRI_FIELD)
    assert closing.remedy == (
        f"set {BY_ENV} = false in /etc/nvidia-container-runtime/config.toml on the node, "
        "once nvdp has its own driver without it, by overlays/cdi or overlays/privileged"
    )


def test_each_finding_is_logged_once_for_as_long_as_it_stands(etc: Path):
    lines = Lines()
    check = RuntimeCheck(log=lines, etc=with_containerd(etc, OFF))
    check.judge([CRI_FIELD])
    check.judge([CRI_FIELD, ENVVAR])
    assert [fields for _, fields in lines.seen] == [{"file": "/etc/containerd/config.toml", "key": f"{CRI}.enable_cdi"}]
    check.judge([ENVVAR])
    check.judge([CRI_FIELD])
    assert len(lines.seen) == 2


def test_the_status_shows_it_until_the_file_is_corrected(etc: Path):
    check = RuntimeCheck(log=Lines(), etc=with_containerd(etc, OFF))
    assert check.find_troubles() == (), "no strategy is in force yet"
    check.judge([CRI_FIELD])
    (trouble,) = check.find_troubles()
    assert (trouble.reason, bool(trouble.text), bool(trouble.remedy)) == ("RuntimeUnsuited", True, True)
    with_containerd(etc, OFF.replace("false", "true"))
    assert check.find_troubles() == ()
