"""What is told of events that the driver does not tell: each change once, in virtual time."""

from __future__ import annotations

import pytest

from nvdp.model.inventory import Driver, Fault, Gpu, Inventory, MigMode
from nvdp.model.platforms import TEGRA_UUID, WSL_UUID, Platform
from nvdp.model.reasons import Level, Reason
from nvdp.nvml.frames import Scanned, Watch
from nvdp.services.deafness import Deafness, Unheard
from nvdp.services.nvml_counts import count_outcome

UUIDS = ("GPU-zero", "GPU-one", "GPU-two")
NO_SET = Unheard(text="nvmlEventSetCreate: unknown error", error="Unknown")
OLD = Unheard(text="nvmlEventSetCreate: this driver's library does not know the call", error="FunctionNotFound")
FAULT = Fault(call="nvmlDeviceRegisterEvents", kind="Unknown", text="nvmlDeviceRegisterEvents: unknown error")


class Ward:
    """Lets scans be told of, and keeps what was said: level, device, sentence."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.said: list[tuple[Level, object, str]] = []
        self.deafness = Deafness(self._log, wall=lambda: self.now)

    def _log(self, reason: Reason, msg: str, /, *, level: Level | None = None, **fields: object) -> None:
        assert reason in {Reason.WATCH_DEGRADED, Reason.WATCH_RESTORED}
        self.said.append((level or reason.level, fields.get("device"), msg))

    def scan(self, *unwatched: str, unheard: Unheard | None = None, gpus=UUIDS, known=UUIDS, faulty=()) -> list:
        """One scan; what was said of it."""
        self.said.clear()
        self.now += 10
        self.deafness.follow(build_scan(unwatched, gpus, faulty), unheard, known=known)
        return self.said


def build_scan(unwatched, gpus=UUIDS, faulty=(), platform=Platform.NVML) -> Scanned:
    inventory = Inventory(
        driver=Driver(version="", cuda_version=""),
        platform=platform,
        gpus=tuple(
            Gpu(uuid=uuid, index=n, mig=MigMode.UNSUPPORTED, fault=FAULT if uuid in faulty else None)
            for n, uuid in enumerate(gpus)
        ),
    )
    return Scanned(inventory=inventory, unwatched=tuple(unwatched))


@pytest.fixture
def ward() -> Ward:
    return Ward()


def test_where_all_is_heard_nothing_is_said(ward):
    assert ward.scan() == []
    assert ward.deafness.trouble is None


def test_a_session_without_events_is_an_error_once_and_a_trouble_since_then_until_it_is_over(ward):
    assert ward.scan(*UUIDS, unheard=NO_SET) == [
        (Level.ERROR, None, f"{NO_SET.text}; no XID of any GPU is heard, they are watched by scans alone")
    ]
    trouble = ward.deafness.trouble
    assert (trouble.reason, trouble.since, trouble.note) == ("WatchDegraded", 1010.0, False)
    assert "dmesg" in trouble.remedy
    for _ in range(10):
        assert ward.scan(*UUIDS, unheard=NO_SET) == []
    assert ward.deafness.trouble == trouble
    assert ward.scan() == [(Level.INFO, None, "the driver's events are heard again")]
    assert ward.deafness.trouble is None
    assert ward.scan() == []
    assert len(ward.scan(*UUIDS, unheard=NO_SET)) == 1
    assert ward.deafness.trouble.since == ward.now


def test_another_cause_is_told_too_and_the_trouble_is_as_old_as_the_first(ward):
    ward.scan(*UUIDS, unheard=NO_SET)
    ((level, _, text),) = ward.scan(unheard=Unheard(text="no thread can wait"))
    assert (level, text.partition(";")[0]) == (Level.ERROR, "no thread can wait")
    assert ward.deafness.trouble.since == 1010.0


def test_a_library_that_is_too_old_for_events_is_a_warning_and_a_note(ward):
    ((level, _, _),) = ward.scan(*UUIDS, unheard=OLD)
    assert level is Level.WARNING
    assert ward.deafness.trouble.note
    assert "450" in ward.deafness.trouble.remedy


def test_a_gpu_without_events_is_a_warning_once_whatever_becomes_of_it_meanwhile(ward):
    ((level, device, text),) = ward.scan("GPU-two")
    assert (level, device) == (Level.WARNING, "GPU-two")
    assert text.startswith("the driver tells no events of this GPU")
    trouble = ward.deafness.trouble
    assert (trouble.note, trouble.since) == (True, None)
    assert "GPU 2 (GPU-two)" in trouble.text
    assert ward.scan("GPU-two") == []
    assert ward.scan("GPU-two", faulty=["GPU-two"]) == []
    assert ward.scan(gpus=UUIDS[:2]) == [], "it is lost, and not forgotten"
    assert ward.scan("GPU-two") == []
    assert [line[0] for line in ward.scan(*UUIDS, unheard=NO_SET)] == [Level.ERROR]
    assert [line[0] for line in ward.scan("GPU-two")] == [Level.INFO], "of the session, and not of the GPU"
    assert ward.scan() == [(Level.INFO, "GPU-two", "the driver tells the events of this GPU now")]
    assert ward.deafness.trouble is None


def test_a_gpu_that_was_forgotten_is_told_of_anew(ward):
    ward.scan("GPU-two")
    assert ward.scan(gpus=UUIDS[:2], known=UUIDS[:2]) == []
    assert ward.deafness.trouble is None
    assert len(ward.scan("GPU-two")) == 1


def test_a_gpu_whose_registration_fails_otherwise_is_told_of_as_unhealthy_and_not_here(ward):
    assert ward.scan("GPU-one", faulty=["GPU-one"]) == []
    assert ward.deafness.trouble is None


@pytest.mark.parametrize(("platform", "uuid"), [(Platform.TEGRA, TEGRA_UUID), (Platform.WSL, WSL_UUID)])
def test_nobody_expects_events_where_all_that_computes_is_one_device(ward, platform, uuid):
    ward.scan("GPU-two", unheard=NO_SET)
    ward.said.clear()
    for _ in range(2):
        ward.deafness.follow(build_scan([uuid], [uuid], platform=platform), None, known=[uuid])
        assert (ward.said, ward.deafness.trouble) == ([], None)


class Counts:
    def __init__(self) -> None:
        self.failed: list[tuple[str, str]] = []

    def nvml_failed(self, call: str, kind: str) -> None:
        self.failed.append((call, kind))


@pytest.mark.parametrize(
    ("watch", "counted"),
    [
        (Watch(), []),
        (Watch(problem=NO_SET.text, kind="Unknown"), [("nvmlEventSetCreate", "Unknown")]),
        (Watch(problem=OLD.text, kind="FunctionNotFound"), []),
        (Watch(problem="no thread can wait"), []),
        (Watch(problem="nvmlEventSetWait: unknown error", kind="Unknown", failed=True), []),  # counted when it failed
    ],
)
def test_an_event_set_that_cannot_be_made_is_an_nvml_error_at_each_try(watch, counted):
    counts = Counts()
    count_outcome(Scanned(inventory=build_scan([]).inventory, watch=watch), counts)
    assert counts.failed == counted
