"""The state directory: what is saved comes back whole or not at all, whatever happens to the file."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import textwrap
import time

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nvdp.errors import HostError
from nvdp.host.state import AppliedConfig, State, StateDirectory, read_state
from nvdp.model.chosen import Chosen
from nvdp.model.reasons import Reason

GOOD = State(
    config=AppliedConfig(
        text="version: v1\n# ünïcode\n",
        source="/config/mixed",
        hash="sha256:1f0c9a2e77b0",
        chosen=Chosen("mixed", "label a=mixed"),
    ),
    candidate=AppliedConfig(text="version: v1\n", source="/config/base", hash="sha256:2c41d09be5aa"),
    pins={"0": "GPU-4cf8db2d-06c0-7d70-1a51-e59b25b2c16c"},
    resources=("nvidia.com/gpu", "nvidia.com/gpu.shared"),
    indices={"nvidia.com/gpu": {"GPU-4cf8db2d-06c0-7d70-1a51-e59b25b2c16c": "3"}},
    by_cdi={"nvidia.com/gpu": ("GPU-4cf8db2d-06c0-7d70-1a51-e59b25b2c16c::2",)},
    by_mps={"nvidia.com/gpu.mps": ("GPU-4cf8db2d-06c0-7d70-1a51-e59b25b2c16c",)},
)


class Lines(list):
    def __call__(self, reason, msg, /, **fields):
        self.append((reason, msg, fields))


def load(directory):
    log = Lines()
    return StateDirectory(directory, log=log).load_state(), log


def damage(directory, content):
    directory.mkdir(exist_ok=True)
    (directory / "state.json").write_bytes(content)
    state, log = load(directory)
    assert state == State()
    ((reason, msg, _),) = log
    assert reason is Reason.STATE_DAMAGED
    assert msg.startswith(f"{directory / 'state.json'}: ignored: ")
    assert "\n" not in msg
    return msg


def test_who_only_looks_sees_the_same_and_touches_nothing(tmp_path):
    assert read_state(tmp_path / "missing") == State()
    StateDirectory(tmp_path, log=Lines()).save_state(GOOD)
    abandoned = tmp_path / "state.json.old.tmp"
    abandoned.touch()
    os.utime(abandoned, (0, 0))
    assert read_state(tmp_path) == GOOD
    (tmp_path / "state.json").write_text("{")
    with pytest.raises(HostError, match=rf"^{tmp_path}/state\.json: cannot be used: .+$"):
        read_state(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"state.json", abandoned.name}


@pytest.mark.invariant(9)
def test_what_was_saved_is_there_after_a_restart(tmp_path):
    StateDirectory(tmp_path / "nvdp", log=Lines()).save_state(GOOD)
    assert load(tmp_path / "nvdp") == (GOOD, [])


def test_what_was_saved_before_there_were_several_to_choose_from_is_good_still(tmp_path):
    saved = {"version": 1, "state": {"config": {"text": "version: v1\n", "source": "/config/a", "hash": "sha256:1"}}}
    (tmp_path / "state.json").write_bytes(msgspec.json.encode(saved))
    config = AppliedConfig(text="version: v1\n", source="/config/a", hash="sha256:1", chosen=None)
    assert load(tmp_path) == (State(config=config), [])


def test_a_directory_or_file_that_is_missing_is_an_empty_state_and_no_news(tmp_path):
    assert load(tmp_path / "missing") == (State(), [])
    assert load(tmp_path) == (State(), [])
    assert not (tmp_path / "missing").exists()


def test_only_root_can_read_what_is_saved(tmp_path):
    directory = tmp_path / "var" / "lib" / "nvdp"
    StateDirectory(directory, log=Lines()).save_state(GOOD)
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert stat.S_IMODE((directory / "state.json").stat().st_mode) == 0o600
    assert [entry.name for entry in directory.iterdir()] == ["state.json"]


def test_a_file_of_a_predecessor_that_kept_less_is_used(tmp_path):
    (tmp_path / "state.json").write_bytes(b'{"version":1,"state":{"resources":["nvidia.com/gpu"]}}')
    assert load(tmp_path) == (State(resources=("nvidia.com/gpu",)), [])


def test_the_file_carries_its_version(tmp_path):
    StateDirectory(tmp_path, log=Lines()).save_state(GOOD)
    assert msgspec.json.decode((tmp_path / "state.json").read_bytes())["version"] == 1


def test_nothing_is_written_that_is_saved_already(tmp_path):
    directory = StateDirectory(tmp_path, log=Lines())
    directory.save_state(GOOD)
    before = (tmp_path / "state.json").stat().st_ino, (tmp_path / "state.json").stat().st_ctime_ns
    directory.save_state(GOOD)
    again = StateDirectory(tmp_path, log=Lines())
    again.save_state(again.load_state())
    assert ((tmp_path / "state.json").stat().st_ino, (tmp_path / "state.json").stat().st_ctime_ns) == before


def test_what_somebody_removed_is_written_again(tmp_path):
    directory = StateDirectory(tmp_path / "state", log=Lines())
    assert directory.is_kept, "there is nothing to be kept yet"
    directory.save_state(GOOD)
    assert directory.is_kept
    shutil.rmtree(tmp_path / "state")
    assert not directory.is_kept
    directory.save_state(GOOD)
    assert (load(tmp_path / "state"), directory.is_kept) == ((GOOD, []), True)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "Input data was truncated"),
        (b"{", "Input data was truncated"),
        (b"\x00\xff", "JSON is malformed"),
        (b"[]", "Expected `object`, got `array`"),
        (b'{"state":{}}', "missing required field `version`"),
        (b'{"version":1,"state":{"resources":"nvidia.com/gpu"}}', "Expected `array`, got `str`"),
        (b'{"version":1,"state":{"config":{"text":"\xff"}}}', ""),
        (b'{"version":2,"state":{}}', "version 2, and this program knows 1"),
        (b'{"x":' + b"[" * 100_000, ""),
        (b'{"version":1,"state":{}}' + b" " * 16 * 2**20, "larger than 16 MiB"),
    ],
    ids=range(10),
)
def test_a_file_that_is_not_a_whole_state_is_ignored_and_kept_aside(tmp_path, content, why):
    msg = damage(tmp_path, content)
    assert why in msg
    assert msg.endswith("kept as state.json.damaged")
    assert (tmp_path / "state.json.damaged").read_bytes() == content
    assert load(tmp_path) == (State(), [])  # said once


@given(content=st.binary(max_size=60), at=st.integers(0, 400))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200, deadline=None)
def test_no_content_whatever_raises(tmp_path, content, at):
    whole = msgspec.json.encode({"version": 1, "state": msgspec.to_builtins(GOOD)})
    tmp_path.joinpath("state.json").write_bytes(whole[:at] + content + whole[at + len(content) :])
    state, log = load(tmp_path)
    assert (state == State()) or not log


def test_a_symbolic_link_in_its_place_is_neither_read_nor_written_through(tmp_path):
    precious, directory = tmp_path / "precious", tmp_path / "nvdp"
    directory.mkdir()
    precious.write_bytes(msgspec.json.encode({"version": 1, "state": msgspec.to_builtins(GOOD)}))
    (directory / "state.json").symlink_to(precious)
    state, log = load(directory)
    assert state == State()
    assert "is a symbolic link; a file is needed" in log[0][1]

    (directory / "state.json").symlink_to(precious)
    before = precious.read_bytes()
    StateDirectory(directory, log=Lines()).save_state(State(resources=("a",)))
    assert precious.read_bytes() == before
    assert not (directory / "state.json").is_symlink()


def test_a_named_pipe_or_a_directory_in_its_place_does_not_hold_the_start_up(tmp_path):
    os.mkfifo(tmp_path / "state.json")
    assert "is a named pipe" in load(tmp_path)[1][0][1]
    (tmp_path / "state.json").mkdir()
    (tmp_path / "state.json.damaged").unlink()
    assert "is a directory" in load(tmp_path)[1][0][1]
    StateDirectory(tmp_path, log=Lines()).save_state(GOOD)
    assert load(tmp_path) == (GOOD, [])


def test_what_cannot_be_kept_aside_says_so(tmp_path):
    (tmp_path / "state.json.damaged").mkdir()
    assert "it could not be kept aside: Is a directory" in damage(tmp_path, b"{")


def test_a_path_that_is_no_directory_is_one_clear_error_and_works_once_it_is_mended(tmp_path):
    path = tmp_path / "nvdp"
    path.write_text("a file")
    directory = StateDirectory(path, log=Lines())
    assert directory.load_state() == State()
    for _ in range(2):
        with pytest.raises(HostError, match=r"nvdp/state\.json: cannot be written: [^;]+$"):
            directory.save_state(GOOD)
    path.unlink()
    directory.save_state(GOOD)
    assert load(path) == (GOOD, [])


def run(script, *arguments):
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), *map(str, arguments)],
        check=False,
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_full_disk_leaves_the_state_before_and_no_litter(tmp_path):
    StateDirectory(tmp_path, log=Lines()).save_state(GOOD)
    said = run(
        """
        import resource, sys
        from pathlib import Path
        from nvdp.errors import HostError
        from nvdp.host.state import State, StateDirectory
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))  # stops a write half way
        try:
            StateDirectory(Path(sys.argv[1]), log=print).save_state(State(resources=("x" * 4000,)))
        except HostError as error:
            print(error)
        """,
        tmp_path,
    )
    assert said.startswith(f"{tmp_path}/state.json: cannot be written: File too large")
    assert load(tmp_path) == (GOOD, [])
    assert [entry.name for entry in tmp_path.iterdir()] == ["state.json"]


def test_what_a_process_left_that_died_before_its_rename_is_removed_later(tmp_path):
    StateDirectory(tmp_path, log=Lines()).save_state(GOOD)
    run(
        """
        import os, sys
        from pathlib import Path
        from nvdp.host.state import State, StateDirectory
        sys.addaudithook(lambda event, _: os._exit(0) if event == "os.rename" else None)
        StateDirectory(Path(sys.argv[1]), log=print).save_state(State())
        sys.exit("not reached")
        """,
        tmp_path,
    )
    (left,) = tmp_path.glob("*.tmp")
    assert load(tmp_path) == (GOOD, [])
    assert left.exists()  # it might be another process's that writes just now
    hour_ago = time.time() - 3600
    os.utime(left, (hour_ago, hour_ago))
    assert load(tmp_path) == (GOOD, [])
    assert not left.exists()


def test_overlapping_processes_never_tear_the_file(tmp_path):
    script = textwrap.dedent(
        """
        import sys
        from pathlib import Path
        from nvdp.host.state import State, StateDirectory
        directory = StateDirectory(Path(sys.argv[1]), log=print)
        for number in range(150):
            directory.save_state(State(resources=(sys.argv[2] * 5000, str(number))))
        """
    )
    writers = [subprocess.Popen([sys.executable, "-c", script, tmp_path, name]) for name in "ab"]
    seen = set()
    while any(writer.poll() is None for writer in writers):
        state, log = load(tmp_path)
        assert log == []
        seen.update({text[0] for text in state.resources[:1]})
    assert [writer.wait() for writer in writers] == [0, 0]
    assert load(tmp_path)[0].resources[1] == "149"
    assert seen
    assert [entry.name for entry in tmp_path.iterdir()] == ["state.json"]
