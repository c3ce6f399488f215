"""The watcher: told at once by inotify, within a second without it, and never deaf."""

from __future__ import annotations

import errno
import os
import queue
import shutil
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from nvdp.host.change import PathWatch
from nvdp.host.files import config_directories, config_fingerprint, config_settle_s, load_text
from nvdp.host.watch import Inotify, Watcher
from nvdp.kubelet.sockets import socket_directory_fingerprint
from nvdp.model.reasons import Reason
from tests.host.changes import CHANGES, configmap

NOTIFIED_ONLY = {"poll_s": 60.0}


class Lines(list):
    def __call__(self, reason, msg, /, **fields):
        self.append((reason, msg, fields))


class Told:
    """What a watch passed on, for a test to wait for."""

    def __init__(self):
        self._queue = queue.SimpleQueue()

    def __call__(self, value):
        self._queue.put(value)

    def next(self, timeout_s=5.0):
        return self._queue.get(timeout=timeout_s)

    def wait_for(self, wanted, timeout_s=5.0):
        deadline = time.monotonic() + timeout_s
        while (value := self.next(max(0.0, deadline - time.monotonic()))) != wanted:
            pass
        return value

    @property
    def nothing_more(self):
        return self._queue.empty()


def config_watch(path, told, **options):
    return PathWatch(
        fingerprint=lambda: config_fingerprint(path),
        directories=lambda: config_directories(path),
        on_change=told,
        **options,
    )


@contextmanager
def watching(*watches, log=None, **options):
    watcher = Watcher(watches, log=log if log is not None else Lines(), **options)
    watcher.start()
    try:
        yield watcher
    finally:
        watcher.stop()
        assert not watcher._thread.is_alive()


def wait_until(condition, timeout_s=5.0, step_s=0.002):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(step_s)


def refuse(number):
    def open_notification(_on_event):
        raise OSError(number, os.strerror(number))

    return open_notification


@pytest.fixture
def short():
    path = Path(tempfile.mkdtemp(prefix="nv", dir="/tmp"))
    yield path
    shutil.rmtree(path)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_change_is_notified_whatever_its_kind(tmp_path, change):
    path, told = configmap(tmp_path / "config"), Told()
    with watching(config_watch(path, told), **NOTIFIED_ONLY) as watcher:
        told.wait_for(config_fingerprint(path))
        wait_until(lambda: watcher._covered)
        change(path)
        told.wait_for(config_fingerprint(path))
        # And the next one too: a re-created or exchanged directory must not leave the watcher deaf.
        path.parent.mkdir(exist_ok=True)
        path.unlink(missing_ok=True)
        path.write_text("the change after that")
        told.wait_for(config_fingerprint(path))


def test_without_inotify_every_kind_of_change_is_found_within_two_and_a_half_seconds(tmp_path):
    log = Lines()
    paths = {change: configmap(tmp_path / change.__name__) for change in CHANGES}
    told = {change: Told() for change in CHANGES}
    watches = [config_watch(paths[change], told[change], settle_s=config_settle_s) for change in CHANGES]
    with watching(*watches, log=log, open_notification=refuse(errno.EMFILE)):
        for change in CHANGES:
            told[change].next()
        for change in CHANGES:
            change(paths[change])
        changed_at = time.monotonic()
        for change in CHANGES:
            told[change].wait_for(config_fingerprint(paths[change]))
        assert time.monotonic() - changed_at < 2.5
    ((reason, msg, _),) = log
    assert reason is Reason.WATCH_DEGRADED
    assert str(tmp_path) in msg
    assert "sysctl fs.inotify.max_user_instances" in msg


def test_a_swapped_configmap_is_passed_on_in_milliseconds(tmp_path):
    path, told, latencies = configmap(tmp_path / "config"), Told(), []
    with watching(config_watch(path, told, settle_s=config_settle_s), **NOTIFIED_ONLY) as watcher:
        told.next()
        wait_until(lambda: watcher._covered)
        for number in range(11):
            start = time.monotonic()
            configmap(path.parent, f"version {number}")
            told.wait_for(config_fingerprint(path))
            latencies.append(time.monotonic() - start)
    assert sorted(latencies)[5] < 0.05


def test_a_write_in_place_is_passed_on_once_it_is_whole(tmp_path):
    path, read = tmp_path / "config.yaml", Told()
    path.write_text("whole")

    def read_it(_fingerprint):
        read(load_text(path, limit_bytes=100))

    with watching(config_watch(path, read_it, settle_s=config_settle_s)) as watcher:
        assert read.next() == b"whole"
        wait_until(lambda: watcher._covered)
        with path.open("w") as file:  # empty from here on, which would be all defaults
            for part in ("half, ", "then ", "all of it"):
                file.write(part)
                file.flush()
                wait_until(lambda: not watcher._wake.is_set())
        assert read.next() == b"half, then all of it"
        assert read.nothing_more


def test_directories_that_are_missing_are_waited_for(tmp_path):
    path, told = tmp_path / "not" / "yet" / "config.yaml", Told()
    with watching(config_watch(path, told), **NOTIFIED_ONLY) as watcher:
        assert told.next() is None
        wait_until(lambda: watcher._covered)
        path.parent.mkdir(parents=True)
        path.write_text("at last")
        told.wait_for(config_fingerprint(path))


@pytest.mark.requirement(20)
def test_a_socket_that_is_replaced_at_once_is_seen_although_its_inode_may_be_the_same(short):
    path, told = short / "kubelet.sock", Told()
    watch = PathWatch(
        fingerprint=lambda: socket_directory_fingerprint(short), directories=lambda: (short,), on_change=told
    )
    with watching(watch, **NOTIFIED_ONLY) as watcher:
        assert told.next() == {}
        wait_until(lambda: watcher._covered)
        (short / "DEPRECATION").write_text("no socket")
        for _ in range(5):
            with socket.socket(socket.AF_UNIX) as kubelet:
                path.unlink(missing_ok=True)
                kubelet.bind(str(path))
                told.wait_for(socket_directory_fingerprint(short))
        shutil.rmtree(short)
        short.mkdir()
        with socket.socket(socket.AF_UNIX) as kubelet:
            kubelet.bind(str(path))
            (identity,) = told.wait_for(socket_directory_fingerprint(short)).values()
            assert identity.inode == path.stat().st_ino


def test_check_now_looks_although_nothing_was_notified():
    value, told = ["a"], Told()
    watch = PathWatch(fingerprint=lambda: value[0], directories=lambda: (), on_change=told)
    with watching(watch, **NOTIFIED_ONLY) as watcher:
        assert told.next() == "a"
        value[0] = "b"
        watcher.check_now()
        assert told.next() == "b"


class Scripted:
    """A notification that refuses what the test says, and else really notifies."""

    def __init__(self):
        self.refused_instance = None
        self.refused_directories = {}
        self.opened = 0
        self.added = []

    def open(self, on_event):
        if self.refused_instance is not None:
            raise OSError(self.refused_instance, os.strerror(self.refused_instance))
        self.opened += 1
        script = self

        class Refusing(Inotify):
            def add(self, directory):
                number = script.refused_directories.get(directory)
                if number is not None:
                    raise OSError(number, os.strerror(number))
                super().add(directory)
                script.added.append(directory)

        return Refusing(on_event)


def test_exhausted_inotify_is_reported_once_and_recovers_by_itself(tmp_path):
    path, told, log, script = tmp_path / "config.yaml", Told(), Lines(), Scripted()
    script.refused_instance = errno.EMFILE
    with watching(
        config_watch(path, told), log=log, open_notification=script.open, poll_s=0.01, retry_s=0.05
    ) as watcher:
        for number in range(20):
            path.write_text(f"version {number}")
            told.wait_for(config_fingerprint(path))
        ((reason, msg, _),) = log
        assert reason is Reason.WATCH_DEGRADED
        assert (watcher.trouble.reason, watcher.trouble.text) == (reason.word, msg)
        script.refused_instance = None
        wait_until(lambda: watcher._covered and watcher.trouble is None)
        assert len(log) == 1
        assert script.opened == 1


def test_a_directory_that_is_one_too_many_leaves_the_others_notified(tmp_path):
    script, log = Scripted(), Lines()
    first, second = configmap(tmp_path / "first"), tmp_path / "second" / "config.yaml"
    second.parent.mkdir()
    told_first, told_second = Told(), Told()
    script.refused_directories[second.parent] = errno.ENOSPC
    with watching(
        config_watch(first, told_first),
        config_watch(second, told_second),
        log=log,
        open_notification=script.open,
        poll_s=0.5,
        retry_s=0.6,
    ):
        wait_until(lambda: log)
        ((_, msg, fields),) = log
        assert msg == (
            f"{second.parent}: no notification of changes "
            "(No space left on device; raise sysctl fs.inotify.max_user_watches); looking every 0.5s instead"
        )
        assert "No space left" in fields["error"]
        assert first.parent in script.added
        second.write_text("found by looking")
        told_second.wait_for(config_fingerprint(second))
        del script.refused_directories[second.parent]
        wait_until(lambda: second.parent in script.added)
    assert len(log) == 1


def test_a_refusal_after_a_recovery_is_reported_again(tmp_path):
    script, log, path = Scripted(), Lines(), tmp_path / "config" / "config.yaml"
    path.parent.mkdir()
    script.refused_directories[path.parent] = errno.ENOSPC
    with watching(
        config_watch(path, Told()), log=log, open_notification=script.open, poll_s=0.01, retry_s=0.02
    ) as watcher:
        wait_until(lambda: len(log) == 1)
        script.refused_directories.clear()
        wait_until(lambda: path.parent in watcher._covered)
        shutil.rmtree(path.parent)
        wait_until(lambda: path.parent not in watcher._covered)
        script.refused_directories[path.parent] = errno.EACCES
        path.parent.mkdir()
        wait_until(lambda: len(log) == 2)
    assert "Permission denied" in log[1][1]


@contextmanager
def crashes():
    """What reaches ``threading.excepthook``, which in the daemon posts a crash to the supervisor."""
    caught, hook = [], threading.excepthook
    threading.excepthook = caught.append
    try:
        yield caught
    finally:
        threading.excepthook = hook


def test_a_receiver_that_raises_is_reported_and_disturbs_nobody_else(tmp_path):
    broken, sound = tmp_path / "broken", tmp_path / "sound"
    told, calls = Told(), []

    def fail(fingerprint):
        calls.append(fingerprint)
        if len(calls) < 3:
            raise RuntimeError("a defect")

    with crashes() as caught, watching(config_watch(broken, fail), config_watch(sound, told)) as watcher:
        assert told.next() is None
        thread = watcher._thread
        (tmp_path / "new").write_text("x")
        (tmp_path / "new").rename(broken)  # one change: a file that is made and then written to may be seen as two
        wait_until(lambda: len(caught) == 2)
        assert str(caught[1].exc_value) == "a defect"
        assert caught[1].thread.name == "watch"
        sound.write_text("x")
        told.wait_for(config_fingerprint(sound))
        assert len(calls) == 2  # not thrown at it again and again
        watcher.start()
        wait_until(lambda: len(calls) == 3)
        assert calls[2] == config_fingerprint(broken)
        assert watcher._thread is thread


def test_an_event_loop_of_inotify_that_died_is_replaced(tmp_path):
    path, told, script = tmp_path / "config.yaml", Told(), Scripted()
    with watching(config_watch(path, told), open_notification=script.open, poll_s=0.05) as watcher:
        wait_until(lambda: watcher._covered)
        watcher._notification.close()
        wait_until(lambda: script.opened == 2)
        path.write_text("x")
        told.wait_for(config_fingerprint(path))


def open_files():
    """By number and what it is, but for the list itself."""
    found = set()
    for path in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # one that another thread has closed meanwhile
            found.add((path.name, str(path.readlink())))
    return {(number, what) for number, what in found if not what.endswith("/fd")}


def own_threads():
    return sorted(thread.name for thread in threading.enumerate() if thread.name in {"watch", "watch-inotify"})


def test_threads_and_files_stay_flat_over_many_replaced_directories(tmp_path):
    path, told = tmp_path / "config" / "config.yaml", Told()
    before = open_files()
    with watching(config_watch(path, told), poll_s=0.2) as watcher:
        wait_until(lambda: watcher._covered)
        files = open_files()
        for number in range(50):
            path.parent.mkdir()
            path.write_text(f"version {number}")
            told.wait_for(config_fingerprint(path))
            shutil.rmtree(path.parent)
            told.wait_for(None)
        assert own_threads() == ["watch", "watch-inotify"]
        wait_until(lambda: open_files() <= files)  # what others left may end meanwhile
        assert len(watcher._notification._watched) <= 3
    wait_until(lambda: open_files() <= before)
    assert own_threads() == []


def test_a_burst_of_notifications_shares_looks_and_ends_with_the_last_state(tmp_path):
    path, told, looks = tmp_path / "config.yaml", Told(), []
    watch = PathWatch(
        fingerprint=lambda: looks.append(time.monotonic()) or config_fingerprint(path),
        directories=lambda: (tmp_path,),
        on_change=told,
    )
    with watching(watch, **NOTIFIED_ONLY) as watcher:
        wait_until(lambda: watcher._covered)
        start, looks_before = time.monotonic(), len(looks)
        for number in range(2000):
            path.write_text(str(number))
        took_s = time.monotonic() - start
        told.wait_for(config_fingerprint(path))
        assert len(looks) - looks_before < 10 + took_s / 0.004


def test_at_rest_it_looks_once_a_second_and_uses_no_cpu(tmp_path):
    path, looks = configmap(tmp_path / "config"), []

    def look():
        looks.append((time.monotonic(), time.process_time()))
        return config_fingerprint(path), socket_directory_fingerprint(path.parent)  # which opens the directory

    watch = PathWatch(fingerprint=look, directories=lambda: config_directories(path), on_change=Told())
    with watching(watch) as watcher:
        wait_until(lambda: watcher._covered)
        first = len(looks) + 1  # the next one may be the second look after the directories were covered
        wait_until(lambda: len(looks) > first + 2, step_s=0.25)  # the waiting itself uses some
    (began, cpu_before), (ended, cpu_after) = looks[first], looks[first + 2]
    assert ended - began > 1.8
    assert (cpu_after - cpu_before) / (ended - began) < 0.01


def test_stop_does_not_wait_for_the_next_look(tmp_path):
    with watching(config_watch(tmp_path / "config.yaml", Told()), **NOTIFIED_ONLY) as watcher:
        wait_until(lambda: watcher._covered)
        start = time.monotonic()
        watcher.stop()
        assert time.monotonic() - start < 1


CHILD = """
import os, resource, sys, threading
from pathlib import Path
from nvdp.host.change import PathWatch
from nvdp.host.files import config_directories, config_fingerprint
from nvdp.host.watch import Watcher
import watchdog.observers.inotify_c, selectors, encodings.idna

path = Path(sys.argv[1])
told = threading.Semaphore(0)
watch = PathWatch(
    fingerprint=lambda: config_fingerprint(path),
    directories=lambda: config_directories(path),
    on_change=lambda _: told.release(),
)
lines = []
watcher = Watcher([watch], log=lambda reason, msg, **fields: lines.append(msg), poll_s=0.1)
{setup}
watcher.start()
told.acquire(timeout=5)
print("watching", flush=True)
sys.stdin.readline()
print("told" if told.acquire(timeout=5) else "deaf")
print(*lines, sep="\\n", flush=True)
os._exit(0)
"""


def run_child(setup, path):
    """A process of its own that watches ``path`` under a real shortage; what it says after a change."""
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(CHILD).replace("{setup}", setup), str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout.readline() == "watching\n"
        path.write_text("changed")
        output, _ = child.communicate("\n", timeout=20)
    return output.splitlines()


def test_a_process_out_of_files_still_finds_changes_by_looking(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("first")
    setup = "resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir('/proc/self/fd')) - 1,) * 2)"
    told, degraded = run_child(setup, path)
    assert told == "told"
    assert degraded.startswith(f"{tmp_path}: no notification of changes (inotify instance limit reached")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give its rights away")
def test_a_directory_that_may_not_be_listed_is_followed_by_looking(short):
    short.chmod(0o711)
    path = short / "config.yaml"
    path.write_text("first")
    path.chmod(0o644)
    told, degraded = run_child("os.setresuid(65534, 65534, 65534)", path)
    assert told == "told"
    assert degraded == f"{short}: no notification of changes (Permission denied); looking every 0.1s instead"
