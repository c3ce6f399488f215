"""What the lines of a control daemon's log add up to."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvdp.errors import HostError
from nvdp.mps.control_log import START_MARK, ControlLog, LogFollower, WaitingClient, is_noise
from nvdp.simulate.mps.clients import MpsClient
from tests.mps.conftest import LIMIT_S, wait_until

STAMP = "[2026-05-31 23:48:21.671 Control 11107] "
WAITS = "NEW CLIENT {} from user {}: Server is not ready, push client to pending list"


def read(*texts: str) -> ControlLog:
    log = ControlLog()
    for number, text in enumerate(texts):
        log.take(STAMP + text, at=float(number))
    return log


OF_1000 = (
    "Starting control daemon using socket /tmp/nvidia-mps/control",
    WAITS.format(11801, 1000),
    "Starting new server 11803 for user 1000",
    "NEW SERVER 11803: Ready",
)


def test_the_first_client_does_not_wait_for_anybody():
    log = read(*OF_1000)
    assert log.server_user == 1000
    assert log.list_waiting() == ()


def test_a_client_of_another_user_waits_since_it_came():
    log = read(*OF_1000, WAITS.format(11811, 0), WAITS.format(11812, 7), WAITS.format(11813, 1000))
    assert log.list_waiting() == (WaitingClient(11811, 0, 4.0), WaitingClient(11812, 7, 5.0))


def test_nobody_waits_for_another_user_while_no_server_is_ready():
    log = read(*OF_1000[:3], WAITS.format(11811, 0))
    assert log.server_user is None
    assert log.list_waiting() == ()


def test_who_waited_is_served_when_the_server_of_that_user_comes():
    log = read(
        *OF_1000,
        WAITS.format(11811, 0),
        "Server 11803 exited with status 0",
        "Starting new server 11820 for user 0",
        "NEW SERVER 11820: Ready",
    )
    assert (log.server_user, log.list_waiting()) == (0, ())


def test_a_user_who_is_served_waits_no_more():
    log = read(*OF_1000, WAITS.format(5, 0), "NEW CLIENT 6 from user 0: Server already exists")
    assert log.list_waiting() == ()


def test_clients_that_ended_are_forgotten_but_not_those_that_cannot_be_seen():
    log = read(*OF_1000, WAITS.format(5, 7), WAITS.format(0, 8), WAITS.format(6, 9))
    log.forget_gone(lambda pid: pid == 6)
    assert [client.user for client in log.list_waiting()] == [8, 9]


@pytest.mark.parametrize("start", [f"{START_MARK}daemon", STAMP + "Start", STAMP + OF_1000[0]])
def test_a_new_daemon_knows_nothing_of_the_former_one(start):
    log = read(*OF_1000, WAITS.format(5, 7))
    log.take(start, at=9.0)
    assert (log.server_user, log.list_waiting()) == (None, ())


def test_lines_with_a_padded_pid_and_of_other_writers_are_read_too():
    log = ControlLog()
    log.take("[2021-01-31 23:48:21.671 Control     6] Starting new server 9 for user 5", at=0.0)
    log.take("[2021-01-31 23:48:21.671 Legacy Server 6] NEW SERVER 9: Ready", at=0.0)
    assert log.server_user == 5


@given(st.lists(st.text()))
def test_a_line_of_whatever_form_is_no_error(lines):
    log = ControlLog()
    for line in lines:
        log.take(line, at=0.0)
    assert log.list_waiting() == ()


@pytest.mark.parametrize("text", ["Accepting connection...", "NEW UI", "UI closed", "Cmd:get_server_list"])
def test_what_a_question_leaves_says_nothing(text):
    assert is_noise(STAMP + text)


@pytest.mark.parametrize("text", ["Server 92 exited with status 1", "Cmd:set_default_active_thread_percentage 5", ""])
def test_all_else_says_something(text):
    assert not is_noise(STAMP + text)


def test_the_log_of_a_daemon_for_one_user_tells_who_waits_for_it(bench):
    bench.start("GPU-a", multi_user=False)
    follower, log = LogFollower(bench.places.log_dir / "daemon.log"), ControlLog()

    def waiting_users() -> list[int]:
        for line in follower.read_lines():
            log.take(line, at=0.0)
        return [client.user for client in log.list_waiting()]

    first = MpsClient(bench.places.pipe_dir, user=1000, pid=21)
    with first, MpsClient(bench.places.pipe_dir, user=7, pid=22) as second:
        assert not second.is_served
        wait_until(lambda: waiting_users() == [7], "the user who waits")
        first.close()
        assert second.wait_served(LIMIT_S)
        wait_until(lambda: waiting_users() == [], "nobody who waits")


# --- the file


@pytest.fixture
def path(directory):
    return directory / "log"


def append(path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def test_each_line_is_read_once_and_only_when_it_is_whole(path):
    follower = LogFollower(path)
    assert follower.read_lines() == ()
    append(path, "one\ntwo\nthr")
    assert follower.read_lines() == ("one", "two")
    assert follower.read_lines() == ()
    append(path, "ee\n")
    assert follower.read_lines() == ("three",)


def test_after_a_cut_reading_goes_on_where_it_was(path):
    follower = LogFollower(path)
    append(path, "".join(f"line {number}\n" for number in range(2000)))
    assert len(follower.read_lines()) == 2000
    append(path, "new\n")
    content = path.read_text()
    path.write_text(content[content.index("line 1800\n") :])
    assert follower.read_lines() == ("new",)
    append(path, "newer\n")
    assert follower.read_lines() == ("newer",)


def test_a_log_that_was_made_anew_is_read_from_its_start_also_if_it_is_longer(path):
    follower = LogFollower(path)
    append(path, "old\n")
    assert follower.read_lines() == ("old",)
    path.unlink()
    append(path, "new one\nnew two\n")
    assert follower.read_lines() == ("new one", "new two")


def test_a_log_that_is_no_file_is_an_error_in_one_line(path):
    path.mkdir()
    with pytest.raises(HostError, match="is no regular file"):
        LogFollower(path).read_lines()
    path.rmdir()
    path.symlink_to(path)
    with pytest.raises(HostError, match="cannot be read"):
        LogFollower(path).read_lines()
