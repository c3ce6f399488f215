"""The directories of a daemon: open to all, always the same individuals, and away when nobody needs them."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import subprocess
import tempfile
import threading
from pathlib import Path

import pytest

from nvdp.errors import HostError
from nvdp.mps.places import LOG_KEPT_BYTES, LOG_LIMIT_BYTES, Places
from nvdp.mps.removal import empty_directory, remove_directories

RESOURCE = "nvidia.com/gpu.mps"


@pytest.fixture
def places(directory):
    return Places(directory / "run" / "mps", RESOURCE)


@pytest.fixture
def strict_umask():
    before = os.umask(0o077)
    yield
    os.umask(before)


def mode(path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def identity(path) -> int:
    return path.stat().st_ino


def say(places, *lines: str, start: str = "daemon -f") -> None:
    descriptor = places.open_log(start)
    os.write(descriptor, "".join(f"{line}\n" for line in lines).encode())
    os.close(descriptor)


def test_every_directory_up_to_the_pipe_can_be_passed_by_all_users(places, directory, strict_umask):
    places.prepare()
    assert places.pipe_dir == directory / "run" / "mps" / "nvidia.com" / "gpu.mps" / "pipe"
    paths = [places.log_dir, places.pipe_dir, *places.pipe_dir.parents]
    ours = paths[: paths.index(directory)]
    assert len(ours) == 6
    assert {mode(path) for path in ours} == {0o755}


def test_directories_that_are_there_are_opened_and_keep_their_identity(places):
    places.prepare()
    places.resource_dir.chmod(0o700)
    before = identity(places.pipe_dir)
    places.prepare()
    assert mode(places.resource_dir) == 0o755
    assert identity(places.pipe_dir) == before


def test_what_a_dead_daemon_left_goes_and_the_pipe_directory_stays(places):
    places.prepare()
    before = identity(places.pipe_dir)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(places.pipe_dir / "control"))
    os.mkfifo(places.pipe_dir / "log")
    (places.pipe_dir / "below").mkdir()
    (places.pipe_dir / "below" / "file").touch()
    (places.pipe_dir / "link").symlink_to(places.log_dir)
    say(places, "kept")
    places.clean()
    assert list(places.pipe_dir.iterdir()) == []
    assert identity(places.pipe_dir) == before
    assert places.read_last_lines(1) == ("kept",)


def test_no_depth_of_what_a_pod_made_keeps_a_daemon_from_starting_or_from_its_end(directory, in_memory):
    places = Places(in_memory / "mps", RESOURCE)
    for act in (places.clean, places.remove):
        places.prepare()
        dig(places.pipe_dir, "control", depth=1050)
        (places.pipe_dir / "wide").mkdir()
        for number in range(20):
            (places.pipe_dir / "wide" / f"{number}").mkdir()
            (places.pipe_dir / "wide" / f"{number}" / "link").symlink_to(directory)
        act()
    assert list((in_memory / "mps").iterdir()) == []


@pytest.fixture
def in_memory():
    """As the MPS root on a node: on a busy disk thousands of directories take their time."""
    path = Path(tempfile.mkdtemp(prefix="nv", dir="/dev/shm"))
    yield path
    shutil.rmtree(path)


def dig(path, name: str, *, depth: int) -> None:
    directory = os.open(path, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir(name, dir_fd=directory)
        below = os.open(name, os.O_RDONLY, dir_fd=directory)
        os.close(directory)
        directory = below
    os.close(directory)


def test_what_is_too_much_for_one_go_is_beside_the_pipe_and_goes_the_next_time(places):
    places.prepare()
    dig(places.pipe_dir, "control", depth=5)
    above = os.open(places.resource_dir, os.O_RDONLY)
    empty_directory(above, "pipe", first=["control"], limit=0)
    assert list(places.pipe_dir.iterdir()) == []
    assert [path.name for path in places.resource_dir.iterdir() if path.name not in {"pipe", "log"}] == ["removed"]
    assert not remove_directories(above, ["log"], limit=0)
    os.close(above)
    places.clean()
    assert [path.name for path in places.resource_dir.iterdir()] == ["pipe"]


@pytest.fixture
def mount(places):
    """Mounts something where nobody can remove it then, nor move it."""
    places.prepare()
    made = []

    def act(path) -> None:
        path.mkdir(parents=True)
        done = subprocess.run(["/bin/mount", "-t", "tmpfs", "none", path], capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"nothing can be mounted here: {done.stderr.strip()}")
        made.append(path.name)

    yield act
    for name in made:
        (path,) = places.resource_dir.rglob(name)
        subprocess.run(["/bin/umount", path], check=True)


def test_what_cannot_be_removed_is_moved_aside_and_told_when_all_should_be_away(places, mount):
    mount(places.pipe_dir / "control" / "mounted")
    (places.pipe_dir / "control" / "file").touch()
    places.clean()
    assert list(places.pipe_dir.iterdir()) == []
    (left,) = places.resource_dir.glob("removed/*")
    assert [path.name for path in left.iterdir()] == ["mounted"]
    with pytest.raises(HostError, match=r"gpu\.mps/removed: something in it cannot be removed; remove it$"):
        places.remove()
    assert not places.pipe_dir.exists()


def test_what_can_neither_be_removed_nor_moved_is_told_and_all_else_goes(places, mount):
    mount(places.pipe_dir / "control")
    (places.pipe_dir / "file").touch()
    with pytest.raises(HostError, match=r"pipe: cannot be emptied: Device or resource busy$"):
        places.clean()
    assert [path.name for path in places.pipe_dir.iterdir()] == ["control"]


def test_all_is_away_in_the_end_but_what_is_anothers(places, directory):
    other = Places(directory / "run" / "mps", "nvidia.com/gpu")
    places.prepare()
    other.prepare()
    places.remove()
    assert [path.name for path in (directory / "run" / "mps" / "nvidia.com").iterdir()] == ["gpu"]
    (other.resource_dir / "somebody's").touch()
    other.remove()
    assert [path.name for path in other.resource_dir.iterdir()] == ["somebody's"]
    (other.resource_dir / "somebody's").unlink()
    other.remove()
    assert list((directory / "run" / "mps").iterdir()) == []


def test_what_was_never_made_can_be_cleaned_and_removed(places, directory):
    places.clean()
    places.cut_logs()
    places.remove()
    assert places.read_last_lines(5) == ()
    assert list(directory.iterdir()) == []


def test_a_link_below_the_root_is_not_followed(places, directory):
    elsewhere = directory / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    (directory / "run" / "mps").mkdir(parents=True)
    (directory / "run" / "mps" / "nvidia.com").symlink_to(elsewhere)
    for act in (places.prepare, places.clean, places.remove):
        with pytest.raises(HostError, match="symbolic link"):
            act()
    assert mode(elsewhere) == 0o700
    assert list(elsewhere.iterdir()) == []


def test_the_root_itself_may_be_a_link(places, directory):
    (directory / "real").mkdir()
    (directory / "run").symlink_to(directory / "real")
    places.prepare()
    assert (directory / "real" / "mps" / "nvidia.com" / "gpu.mps" / "pipe").is_dir()


def test_a_path_that_is_too_long_for_a_socket_is_refused_with_its_length(directory):
    places = Places(directory, "nvidia.com/" + "g" * 100)
    with pytest.raises(
        HostError, match=r"bytes too long for the sockets .* at most 107 bytes; use a shorter --mps-dir"
    ):
        places.prepare()
    assert list(directory.iterdir()) == []


def test_places_of_one_vendor_can_be_made_and_removed_at_the_same_time(directory):
    errors = []

    def churn(name: str) -> None:
        places = Places(directory, f"nvidia.com/{name}")
        try:
            for _ in range(60):
                places.prepare()
                places.remove()
        except HostError as error:
            errors.append(error)

    threads = [threading.Thread(target=churn, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert list(directory.iterdir()) == []


# --- logs


def test_the_last_lines_are_of_the_last_daemon_without_what_questions_leave(places):
    places.prepare()
    say(places, "of the former one")
    say(
        places,
        "[2026-05-31 23:46:49.893 Control 11107] Start",
        "[2026-05-31 23:46:49.893 Control 11107] Server 92 exited with status 1",
        "[2026-05-31 23:46:49.893 Control 11107] Accepting connection...",
        "[2026-05-31 23:46:49.893 Control 11107] NEW UI",
        "[2026-05-31 23:46:49.893 Control 11107] Cmd:get_default_active_thread_percentage",
        "[2026-05-31 23:46:49.893 Control 11107] UI closed",
        "bell \a" + "x" * 400,
        "",
    )
    lines = places.read_last_lines(2)
    assert lines[0] == "[2026-05-31 23:46:49.893 Control 11107] Server 92 exited with status 1"
    assert lines[1] == "bell ?" + "x" * 294
    assert len(places.read_last_lines(10)) == 3


def test_a_daemon_that_said_nothing_has_no_last_lines(places):
    places.prepare()
    say(places, "of the former one")
    say(places)
    assert places.read_last_lines(5) == ()


def test_a_log_over_its_limit_is_cut_in_place_to_whole_lines_of_its_end(places):
    places.prepare()
    log = places.log_dir / "control.log"
    small = places.log_dir / "server.log"
    small.write_text("short\n")
    with log.open("ab") as writer:
        writer.write(b"".join(b"line %07d\n" % number for number in range(LOG_LIMIT_BYTES // 13 + 1)))
        writer.flush()
        before = identity(log)
        places.cut_logs()
        writer.write(b"written on\n")
    assert identity(log) == before
    content = log.read_bytes()
    assert LOG_KEPT_BYTES - 13 < len(content) <= LOG_KEPT_BYTES + 11
    lines = content.splitlines()
    assert {len(line) for line in lines[:-1]} == {12}
    assert lines[-1] == b"written on"
    assert small.read_text() == "short\n"


def test_of_a_log_whose_writer_does_not_append_the_gap_goes_with_the_next_cut(places):
    places.prepare()
    log = places.log_dir / "control.log"
    with log.open("wb", buffering=0) as writer:
        writer.write(b"x" * (LOG_LIMIT_BYTES + 1))
        places.cut_logs()
        writer.write(b"\nsaid\n")
        places.cut_logs()
    assert log.read_bytes() == b"said\n"


def test_what_is_no_file_among_the_logs_is_left_alone(places, directory):
    places.prepare()
    os.mkfifo(places.log_dir / "pipe.log")
    (directory / "big").write_bytes(b"x" * (LOG_LIMIT_BYTES + 1))
    (places.log_dir / "link.log").symlink_to(directory / "big")
    places.cut_logs()
    assert (directory / "big").stat().st_size == LOG_LIMIT_BYTES + 1
    (places.log_dir / "daemon.log").symlink_to(directory / "big")
    with pytest.raises(HostError, match=r"daemon\.log: cannot be written"):
        places.open_log("daemon -f")
