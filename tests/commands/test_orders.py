"""``nvdp pause``, ``nvdp resume`` and ``nvdp health clear``: over a real control socket, to one who notes them."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nvdp.__main__ import main
from nvdp.app.answers import Answers
from nvdp.http.control_server import ControlServer
from nvdp.http.control_socket import SOCKET_NAME
from nvdp.metrics.recording import Metrics
from nvdp.model.orders import Carried

LIMIT_S = 10.0
UUID = "GPU-9a1b77c0-d33e-4f0b-8f7e-2b1d6a0c9e55"


class Daemon:
    """Answers every order with ``carried``, on the control socket in ``run_dir``."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.given: list[tuple[str, ...]] = []
        self.carried = Carried(done=True, text="done, and what to do next")

    def pause(self, note: str) -> Carried:
        return self._carry_out("pause", note)

    def resume(self) -> Carried:
        return self._carry_out("resume")

    def clear(self, device: str) -> Carried:
        return self._carry_out("clear", device)

    def _carry_out(self, *order: str) -> Carried:
        self.given.append(order)
        return self.carried


@pytest.fixture
def run_dir() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="nv", dir="/tmp"))
    yield path
    shutil.rmtree(path)


@pytest.fixture
def daemon(run_dir: Path) -> Iterator[Daemon]:
    orders = Daemon(run_dir)
    answers = Answers(
        metrics=Metrics(),
        post=lambda _event: None,
        count_events=lambda: 0,
        get_actors=dict,
        container_problem=lambda: None,
        refresh_holders=lambda _limit: None,
        find_troubles=tuple,
        orders=orders,
    )
    server = ControlServer(
        run_dir,
        routes=answers.control_routes,
        orders=answers.control_orders,
        log=lambda *_, **__: None,
        defect=lambda _: None,
        look_every_s=0.05,
    )
    server.start()
    deadline = time.monotonic() + LIMIT_S
    while not (run_dir / SOCKET_NAME).exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    yield orders
    server.stop()


@pytest.mark.parametrize(
    ("arguments", "given"),
    [
        (["pause"], ("pause", "")),
        (["pause", "--note", " driver 580 → 590, ticket 17 "], ("pause", "driver 580 → 590, ticket 17")),
        (["resume"], ("resume",)),
        (["health", "clear", UUID.replace("GPU-9a", "GPU-9A")], ("clear", UUID)),
        (["health", "clear", "00000000:65:00.0"], ("clear", "0000:65:00.0")),
        (["health", "clear", "3"], ("clear", "3")),
    ],
)
def test_an_order_is_given_and_what_is_now_so_is_one_line(arguments, given, daemon: Daemon, capsys):
    assert main([*arguments, "--run-dir", str(daemon.run_dir)]) == 0
    assert daemon.given == [given]
    assert capsys.readouterr() == ("done, and what to do next\n", "")


@pytest.mark.parametrize("arguments", [["pause"], ["resume"], ["health", "clear", "0"]])
def test_an_order_that_is_not_carried_out_is_exit_code_4_so_that_no_reset_follows_it(arguments, daemon: Daemon, capsys):
    daemon.carried = Carried(done=False, text="process 17 does not let go of the driver")
    assert main([*arguments, "--run-dir", str(daemon.run_dir)]) == 4
    assert capsys.readouterr() == ("process 17 does not let go of the driver\n", "")


@pytest.mark.parametrize(
    ("arguments", "what_to_do"),
    [
        (["pause"], "Where no nvdp runs, none holds the driver; to have it start paused, set devices.paused: true"),
        (["resume"], "A pause by command lasts until this order or a reboot: give it again once nvdp runs"),
        (["health", "clear", "0"], "What is known of faults outlives restarts: give the order again once nvdp runs"),
    ],
)
def test_without_a_daemon_the_one_line_says_what_to_do(arguments, what_to_do: str, run_dir: Path, capsys):
    assert main([*arguments, "--run-dir", str(run_dir)]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"{run_dir / SOCKET_NAME}: no nvdp runs here")
    assert what_to_do in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["pause", "--note", "a" * 201], "has 201 characters; a note may have 200"),
        (["pause", "--note", "two\nlines"], '"two\\nlines" cannot be shown in one line'),
        (["resume", "now"], "unexpected extra argument"),
        (["health", "clear"], "Missing argument 'DEVICE'"),
        (["health", "clear", "the third"], '"the third" names no GPU; use its index, its UUID, or a PCI address'),
        (["health", "clear", "GPU-662077db"], '"GPU-662077db" is only a part of a UUID; give it in full'),
        (["health", "clear", "0:1"], "0:1 is a MIG device; name its GPU by UUID, PCI address or index"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2_and_nothing_is_ordered(arguments, told: str, daemon: Daemon, capsys):
    assert main([*arguments, "--run-dir", str(daemon.run_dir)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert told in err
    assert err.count("\n") == 1
    assert daemon.given == []
