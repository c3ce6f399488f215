"""The specs on disk follow what is wished and what the driver is, and what is told of them is what resolves there."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import ClassVar

import msgspec
import pytest

from nvdp.errors import HostError
from nvdp.host.cdi_files import CdiFiles
from nvdp.host.watch import Watcher
from nvdp.model.cdi import CdiClass, CdiDevice, CdiWish, qualify
from nvdp.model.cdi_found import Found
from nvdp.model.driver_files import DriverFile, DriverFiles, NodeFacts
from nvdp.planning.provision import find_unmet
from nvdp.services.cdi import CdiService, Times
from tests.cdi.validator import load_names, resolve
from tests.planning.values import GPU as RESOURCE
from tests.planning.values import gpu, parse, uuid
from tests.virtual.node import VirtualNode

GPU, GDS = CdiClass.GPU.file_name, CdiClass.GDS.file_name
NO_DRIVER = "/driver-root: no libcuda.so.580.65.06; mount the driver root there"


def device(number: int) -> CdiDevice:
    return CdiDevice(names=(f"GPU-{number}",), nodes=(f"/dev/nvidia{number}",))


def wish(*numbers: int, **fields) -> CdiWish:
    return CdiWish(devices=tuple(map(device, numbers)), driver_version="580.65.06", **fields)


def names(*devices: str) -> frozenset[str]:
    return frozenset(qualify(CdiClass.GPU, one) for one in devices)


class Driver:
    """What is found on the node: libraries, a failure, or a look that does not come back."""

    def __init__(self):
        self.libraries = ("libcuda.so.580.65.06",)
        self.nodes = {}
        self.hook_problem = ""
        self.failure = None
        self.looks = []
        self.open = threading.Event()
        self.open.set()

    def load(self, wish, prior):
        self.looks.append(wish)
        assert self.open.wait(10)
        if self.failure is not None:
            raise self.failure
        paths = [f"/usr/lib64/{name}" for name in self.libraries]
        files = tuple(DriverFile(path, path) for path in paths)
        driver = DriverFiles(version="580.65.06", library_dirs=("/usr/lib64",), libraries=files)
        features = {CdiClass.GDS: ("/dev/nvidia-fs0",)} if CdiClass.GDS in wish.features else {}
        return Found(driver=driver, nodes=self.nodes, features=features, hook_problem=self.hook_problem, prior=prior)


class Bench:
    """A service on a directory, with all that it posted and logged."""

    made: ClassVar[list[Bench]] = []

    def __init__(self, directory: Path, driver: Driver, *, look_s=0.1, slow_s=60.0):
        self.made.append(self)
        self.directory = directory
        self.driver = driver
        self.posts = []
        self.lines = []
        self.changed = threading.Condition()
        self.service = CdiService(
            self.post,
            files=CdiFiles(directory),
            load_found=driver.load,
            log=self.log,
            times=Times(look_s=look_s, retry_s=0.01, quiet_s=0.02, slow_s=slow_s),
        )

    def post(self, event):
        with self.changed:
            self.posts.append(event.state)
            self.changed.notify_all()

    def log(self, reason, msg, /, **fields):
        self.lines.append((reason.word, msg))

    def told(self, word):
        return [msg for reason, msg in self.lines if reason == word]

    def wait(self, predicate, *, what="a post"):
        """The newest post, once it is as wanted; whatever it says resolves on disk by then."""
        with self.changed:
            assert self.changed.wait_for(lambda: self.posts and predicate(self.posts[-1]), 10), (what, self.posts)
            return self.posts[-1]

    def wait_names(self, *devices):
        return self.wait(lambda state: state.names == names(*devices), what=devices)

    def wait_looks(self, more=2):
        """Until the service has looked at the driver again, from now on, and acted on it."""
        before = len(self.driver.looks)
        self.service.look()
        wait_until(lambda: len(self.driver.looks) >= before + more)

    def rest(self):
        """Have nothing changed any more."""
        self.service.want(CdiWish(enabled=False, keep=frozenset({"all"})))

    def end(self):
        """Where nothing is wished and nothing kept, nothing is looked at."""
        self.driver.open.set()
        self.service.want(CdiWish(enabled=False))

    def resolves(self):
        return frozenset(load_names(self.directory))


def wait_until(predicate):
    deadline = time.monotonic() + 10
    while not predicate():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.fixture(autouse=True)
def all_ended():
    """A service cannot be stopped. None goes on to look ten times a second when its test is over."""
    yield
    while Bench.made:
        Bench.made.pop().end()


@pytest.fixture
def driver():
    made = Driver()
    yield made
    made.open.set()


@pytest.fixture
def bench(tmp_path, driver):
    made = Bench(tmp_path / "cdi", driver)
    made.service.start()
    yield made
    made.rest()


@pytest.mark.requirement(33)
def test_what_is_told_to_resolve_does_in_specs_that_runtimes_accept(bench):
    bench.service.want(wish(0, 1))
    state = bench.wait_names("all", "GPU-0", "GPU-1")
    assert (state.problem, state.answered) == ("", True)
    assert bench.resolves() == state.names
    assert [*resolve(names("GPU-1"), bench.directory).nodes] == ["/dev/nvidia1"]
    assert bench.told("CDIWritten") == [f"{bench.directory}: wrote {GPU}: new gpu=GPU-0, gpu=GPU-1, gpu=all"]


def test_what_is_wrong_is_told_with_what_was_asked_for(bench, driver):
    driver.failure = HostError(NO_DRIVER)
    bench.service.want(wish(0))
    assert bench.wait(lambda state: state.problem).asked == {qualify(CdiClass.GPU, "GPU-0"): {"/dev/nvidia0"}}
    bench.service.want(wish(0, 1))
    bench.wait(lambda state: state.asked.keys() == names("GPU-0", "GPU-1"))


def test_the_same_wish_with_the_same_driver_writes_nothing_and_tells_nothing(bench):
    bench.service.want(wish(0))
    bench.wait_names("all", "GPU-0")
    before = CdiFiles(bench.directory).fingerprint()
    bench.service.want(wish(0))
    bench.wait_looks()
    assert CdiFiles(bench.directory).fingerprint() == before
    assert len(bench.posts) == len(bench.lines) == 1


def test_the_latest_wish_counts_and_nobody_waits_for_the_disk(bench, driver):
    driver.open.clear()
    bench.service.want(wish(0))
    wait_until(lambda: driver.looks)
    for numbers in ((0, 1), (0, 1, 2), (0, 1, 2, 3)):
        bench.service.want(wish(*numbers))
    driver.open.set()
    bench.wait_names("all", "GPU-0", "GPU-1", "GPU-2", "GPU-3")
    assert [len(one.devices) for one in driver.looks[:2]] == [1, 4]
    assert len(bench.posts) == 2


@pytest.mark.parametrize("damage", ["delete", "cut", "replace", "all"])
def test_a_file_that_somebody_deletes_or_damages_is_made_anew_at_once_and_that_is_no_news(bench, damage):
    path = bench.directory / GPU
    watcher = Watcher([bench.service.build_watch()], log=bench.log)
    bench.service.want(wish(0))
    bench.wait_names("all", "GPU-0")
    watcher.start()
    try:
        content = path.read_bytes()
        {
            "delete": path.unlink,
            "cut": lambda: path.write_bytes(content[:100]),
            "replace": lambda: path.write_bytes(content.replace(b"GPU-0", b"GPU-9")),
            "all": lambda: bench.directory.rename(bench.directory.with_name("former")),
        }[damage]()
        wait_until(lambda: path.exists() and path.read_bytes() == content)
    finally:
        watcher.stop()
    assert len(bench.posts) == 1


def test_specs_follow_a_driver_whose_files_go_and_come_back(bench, driver):
    bench.service.want(wish(0))
    bench.wait_names("all", "GPU-0")
    driver.libraries = ()
    wait_until(lambda: not resolve(names("GPU-0"), bench.directory).mounts)
    driver.libraries = ("libcuda.so.580.65.06", "libnvcuvid.so.580.65.06")
    wait_until(lambda: len(resolve(names("GPU-0"), bench.directory).mounts) == 2)
    assert len(bench.posts) == 1, "the names are the same"
    assert bench.told("CDIWritten")[-1].endswith(": the same names, as the driver's files or nodes have changed")


def test_a_driver_that_is_not_found_is_told_once_and_tried_again_while_the_files_stay(bench, driver):
    bench.service.want(wish(0))
    bench.wait_names("all", "GPU-0")
    driver.failure = HostError(NO_DRIVER)
    bench.service.want(wish(0, 1))
    state = bench.wait(lambda state: state.problem == NO_DRIVER)
    assert state.names == names("all", "GPU-0") == bench.resolves()
    bench.wait_looks(4)
    assert bench.service.trouble.text == NO_DRIVER
    assert bench.told("CDIFailed") == [NO_DRIVER]
    driver.failure = None
    state = bench.wait_names("all", "GPU-0", "GPU-1")
    assert (state.problem, bench.service.trouble) == ("", None)
    driver.failure = HostError(NO_DRIVER)
    bench.wait(lambda state: state.problem == NO_DRIVER)
    assert bench.told("CDIFailed") == [NO_DRIVER] * 2, "it is news again"


def test_a_first_wish_that_cannot_be_carried_out_is_answered_too(bench, driver):
    driver.failure = HostError(NO_DRIVER)
    bench.service.want(wish(0))
    state = bench.wait(lambda state: state.answered)
    assert (state.names, state.problem) == (frozenset(), NO_DRIVER)


def test_a_directory_that_cannot_be_written_is_told_with_what_to_mount_and_tried_again(bench):
    bench.directory.parent.joinpath("cdi").write_text("in the way")
    bench.service.want(wish(0))
    state = bench.wait(lambda state: state.answered)
    assert state.problem == f"{bench.directory}: cannot be read: Not a directory"
    bench.directory.unlink()
    bench.wait_names("all", "GPU-0")


def test_nothing_resolves_in_a_directory_that_becomes_a_file_and_all_does_when_it_is_one_again(bench):
    bench.service.want(wish(0))
    bench.wait_names("all", "GPU-0")
    bench.directory.rename(bench.directory.with_name("former"))
    bench.directory.write_text("in the way")
    bench.service.look()
    assert bench.wait_names().problem == f"{bench.directory}: cannot be read: Not a directory"
    bench.directory.unlink()
    assert bench.wait_names("all", "GPU-0").problem == ""
    assert bench.resolves() == names("all", "GPU-0")


def test_a_device_that_has_no_node_costs_that_device_and_says_why(bench, driver):
    driver.nodes = {"/dev/nvidia1": None}
    bench.service.want(wish(0, 1))
    state = bench.wait_names("all", "GPU-0")
    assert state.problem.startswith("GPU-1: not in the CDI specs, as this node has no /dev/nvidia1")
    assert bench.told("CDIFailed") == [state.problem]
    driver.nodes = {"/dev/nvidia1": NodeFacts(type="c", major=195, minor=1, mode=0o666)}
    assert bench.wait_names("all", "GPU-0", "GPU-1").problem == ""


def test_of_many_devices_that_have_no_node_a_few_are_told_and_how_many_more_there_are(bench, driver):
    driver.nodes = {f"/dev/nvidia{number}": None for number in range(7)}
    bench.service.want(wish(*range(8)))
    problem = bench.wait_names("all", "GPU-7").problem
    assert problem.count("not in the CDI specs") == 4
    assert problem.endswith("; and 3 more")


def test_a_hook_program_that_is_not_there_is_told_and_takes_no_device_away(bench, driver):
    driver.hook_problem = "/usr/bin/nvidia-ctk: no such program on this node"
    bench.service.want(wish(0))
    assert bench.wait_names("all", "GPU-0").problem == ""
    assert bench.told("CDIFailed") == [driver.hook_problem]
    assert bench.service.trouble.text == driver.hook_problem
    driver.nodes = {"/dev/nvidia1": None}
    bench.service.want(wish(0, 1))
    problem = bench.wait(lambda state: state.problem).problem
    assert bench.service.trouble.text == f"{problem}; {driver.hook_problem}"
    driver.hook_problem, driver.nodes = "", {}
    bench.wait_looks()
    assert bench.service.trouble is None


def test_a_feature_that_this_node_does_not_have_is_no_trouble_but_something_that_containers_do_without(bench):
    bench.service.want(wish(0, features=(CdiClass.MOFED,)))
    state = bench.wait_names("all", "GPU-0")
    assert (state.problem, bench.service.trouble, bench.told("CDIFailed")) == ("", None, [])
    config = parse("flags: {mofedEnabled: true, plugin: {deviceListStrategy: cdi-cri}}")
    assert list(find_unmet(config, imex_channels=(), cdi=state)) == [
        "flags.mofedEnabled: this node has no device nodes for it; containers do without them"
    ]


@pytest.mark.requirement(46)
def test_what_pods_may_start_with_again_stays_as_it_was_over_a_restart_until_it_is_let_go_of(bench, driver):
    bench.service.want(wish(0, 1))
    bench.wait_names("all", "GPU-0", "GPU-1")
    bench.service.want(wish(0, keep=frozenset({"GPU-1"})))
    bench.wait_looks()
    assert [*resolve(names("GPU-1"), bench.directory).nodes] == ["/dev/nvidia1"]

    fresh = Bench(bench.directory, driver)
    before = CdiFiles(bench.directory).load()
    bench.rest()
    fresh.service.want(wish(0, keep=frozenset({"GPU-1"})))
    fresh.service.start()
    fresh.wait_names("all", "GPU-0", "GPU-1")
    assert CdiFiles(bench.directory).load() == before
    (bench.directory / GPU).unlink()
    fresh.service.look()
    wait_until(lambda: CdiFiles(bench.directory).load() == before)
    fresh.service.want(wish(0))
    fresh.wait_names("all", "GPU-0")
    assert fresh.told("CDIWritten")[-1].endswith(f"wrote {GPU}: gone gpu=GPU-1")
    fresh.rest()


def test_a_class_of_devices_goes_when_nobody_wants_it_and_nobody_may_have_it(bench):
    bench.service.want(wish(0, features=(CdiClass.GDS,)))
    bench.wait(lambda state: qualify(CdiClass.GDS, "all") in state.names)
    bench.service.want(wish(0, keep_classes=frozenset({CdiClass.GDS})))
    bench.wait_looks()
    assert qualify(CdiClass.GDS, "all") in bench.resolves()
    bench.service.want(wish(0))
    bench.wait_names("all", "GPU-0")
    assert not (bench.directory / GDS).exists()


@pytest.mark.requirement(46)
@pytest.mark.parametrize("fails", [True, False], ids=["is gone", "does not answer"])
def test_what_somebody_removes_is_put_back_though_the_driver_cannot_be_looked_at(tmp_path, driver, fails):
    bench = Bench(tmp_path / "cdi", driver, look_s=30.0)
    bench.service.start()
    bench.service.want(wish(0))
    bench.wait_names("all", "GPU-0")
    before = CdiFiles(bench.directory).load()
    if fails:
        driver.failure = HostError(NO_DRIVER)
    else:
        driver.open.clear()
    (bench.directory / GPU).unlink()
    bench.service.look()
    wait_until(lambda: CdiFiles(bench.directory).load() == before)
    bench.rest()


def test_a_look_at_the_driver_that_does_not_end_is_shown_and_what_was_there_is_told(bench, driver):
    bench.service.want(wish(0))
    bench.wait_names("all", "GPU-0")
    bench.rest()
    later = Bench(bench.directory, Driver(), slow_s=0.2)
    later.driver.open.clear()
    later.service.start()
    later.service.want(wish(0, 1))
    state = later.wait_names("all", "GPU-0")
    assert (state.answered, state.problem) == (False, "")
    wait_until(lambda: later.service.trouble is not None)
    assert later.service.trouble.text.startswith("/driver-root: its files have been looked at for more than 0.2 s")
    later.driver.open.set()
    assert later.wait_names("all", "GPU-0", "GPU-1").answered
    wait_until(lambda: later.service.trouble is None)
    later.rest()


def test_specs_that_no_strategy_uses_go_once_no_pod_may_want_them_and_those_of_others_stay(bench):
    bench.service.want(wish(0, features=(CdiClass.GDS,)))
    bench.wait(lambda state: len(state.names) == 3)
    other = bench.directory / "vendor.com-net.json"
    other.write_text("{}")
    before = CdiFiles(bench.directory).load()
    bench.service.want(CdiWish(enabled=False, keep=frozenset({"GPU-0"})))
    looks = len(bench.driver.looks)
    bench.service.want(CdiWish(enabled=False, keep=frozenset({"GPU-0", "GPU-1"})))
    (bench.directory / GPU).unlink()
    bench.service.look()
    wait_until(lambda: CdiFiles(bench.directory).load() == before)
    assert bench.service.build_watch().directories() == (bench.directory,)
    bench.service.want(CdiWish(enabled=False))
    bench.wait_names()
    assert bench.service.build_watch().directories() == ()
    assert [*bench.directory.iterdir()] == [other]
    assert len(bench.driver.looks) <= looks + 1, "nobody looks for a driver that is not needed, but who had begun to"


@pytest.mark.requirement(46)
def test_what_pods_got_by_cdi_before_the_file_went_back_comes_back_after_a_reboot(bench, driver):
    by_cdi, by_variable = (f"flags: {{plugin: {{deviceListStrategy: {way}}}}}" for way in ("cdi-cri", "envvar"))
    node = VirtualNode()
    node.see_kubelet(node.kubelet)
    node.read(parse(by_cdi), text=by_cdi.encode())
    node.scan(gpu(0), gpu(1))
    node.run(10.0)
    node.allocate("pod", uuid(1), RESOURCE)
    node.read(parse(by_variable), text=by_variable.encode())
    node.run(60.0)
    node.restart_daemon(60.0)
    node.read(parse(by_variable), text=by_variable.encode())
    node.scan(gpu(0), gpu(1))
    node.run(60.0)

    bench.service.want(node.wishes[-1])
    bench.wait_names("all", uuid(1))
    assert [*resolve(names(uuid(1)), bench.directory).nodes] == ["/dev/nvidia1"]
    driver.failure = HostError(NO_DRIVER)
    bench.wait(lambda state: state.problem == NO_DRIVER)
    assert bench.service.trouble.text.startswith(f"{NO_DRIVER} (no strategy uses CDI now, but pods hold what")
    assert bench.told("CDIFailed") == [bench.service.trouble.text]

    node.pods.clear()
    node.holders.ask()  # as the service does by itself
    node.run(10.0)
    bench.service.want(node.wishes[-1])
    bench.wait_names()
    assert [*bench.directory.iterdir()] == []


def test_where_cdi_is_not_used_nothing_is_made_and_nothing_is_watched(bench):
    bench.service.want(CdiWish(enabled=False, keep=frozenset({"GPU-0"})))
    state = bench.wait(lambda state: state.answered)
    assert (state.names, state.problem) == (frozenset(), "")
    assert not bench.directory.exists()
    assert (bench.driver.looks, bench.lines) == ([], [])


def test_a_directory_that_cannot_be_read_is_no_trouble_where_cdi_is_not_used(bench):
    bench.directory.write_text("in the way")
    bench.service.want(CdiWish(enabled=False))
    assert bench.wait(lambda state: state.answered).problem == ""
    assert bench.lines == []


def test_two_who_write_the_same_file_differently_do_not_keep_each_other_busy(bench):
    rival = Bench(bench.directory, Driver())
    rival.driver.libraries = ("libcuda.so.570.1",)
    watchers = [Watcher([one.service.build_watch()], log=one.log) for one in (bench, rival)]
    for one in (bench, rival):
        one.service.start()
        one.service.want(wish(0))
        one.wait_names("all", "GPU-0")
    for watcher in watchers:
        watcher.start()
    began = time.monotonic()
    try:
        wait_until(lambda: len(bench.told("CDIWritten")) >= 4)
    finally:
        for watcher in watchers:
            watcher.stop()
    rival.rest()
    assert len(bench.told("CDIWritten")) <= 2 + (time.monotonic() - began) / 0.02


def test_a_defect_is_told_takes_nothing_away_and_ends_with_a_restart(bench, driver):
    crashes = []
    hook, threading.excepthook = threading.excepthook, crashes.append
    try:
        bench.service.want(wish(0))
        bench.wait_names("all", "GPU-0")
        driver.failure = KeyError("minor")
        bench.service.want(wish(0, 1))
        state = bench.wait(lambda state: state.problem)
        wait_until(lambda: crashes)
    finally:
        threading.excepthook = hook
    assert (state.names, state.problem) == (names("all", "GPU-0"), "a defect, see the log: KeyError: 'minor'")
    assert crashes[0].thread.name == CdiService.THREAD
    driver.failure = None
    wait_until(lambda: not crashes[0].thread.is_alive())
    bench.service.start()
    assert bench.wait_names("all", "GPU-0", "GPU-1").problem == ""


def test_flags_of_the_process_are_part_of_every_wish(tmp_path, driver):
    service = CdiService(
        lambda _: None,
        files=CdiFiles(tmp_path),
        load_found=driver.load,
        log=lambda *_, **__: None,
        feature_flags=("disable-ipc-discoverer",),
        disabled_hooks=("all",),
    )
    service.start()
    service.want(wish(0))
    wait_until((tmp_path / GPU).exists)
    assert driver.looks == [
        msgspec.structs.replace(wish(0), feature_flags=("disable-ipc-discoverer",), disabled_hooks=("all",))
    ]
    assert resolve(names("GPU-0"), tmp_path).hooks == []
    service.want(CdiWish(enabled=False, keep=frozenset({"all"})))
