"""The bench itself: it measures everything, says so to people and programs, and tells what it could not measure."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from tests.bench.__main__ import take_all
from tests.bench.figures import Figure, Floor, Machine, Missing, Report, build_figure, build_spread
from tests.bench.processes import load_memory
from tests.bench.table import render_table

ROOT = Path(__file__).resolve().parents[2]
MEMORY = {f"{who}_{kind}" for who in ("daemon", "child") for kind in ("rss", "private", "proportional")}
PROCESSES = {*MEMORY, "daemon_alone", "both_proportional", "both_alone", "threads", "files"}
KEYS = {
    *("start_to_registered", "start_to_registered_by_import", "start_to_list", "start_to_list_most"),
    *("swap_to_list", "restart_to_list", "xid_to_list", "rename_to_list", "write_to_list"),
    *("allocate_1", "allocate_1000", "preferred_1", "preferred_1000", "daemon_rss_most"),
    *("choose_8", "choose_8_partitions", "prepare_16", "choose_16", "choose_16_partitions"),
    *("idle_cpu", "load_call", "load_reconnect"),
    *(f"{when}_{key}" for when in ("at_rest", "after_load") for key in PROCESSES),
    *(f"clustered_{key}" for key in PROCESSES if key.startswith("daemon_") or key in {"threads", "files"}),
}
WITH_AIM = {
    *("start_to_registered", "start_to_registered_by_import", "start_to_list_most", "preferred_1000"),
    *("swap_to_list", "restart_to_list", "xid_to_list", "prepare_16", "choose_16", "idle_cpu"),
    *(f"{when}_{who}_alone" for when in ("at_rest", "after_load") for who in ("daemon", "both")),
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[subprocess.CompletedProcess[str], Report]:
    file = tmp_path_factory.mktemp("bench") / "bench.json"
    command = [sys.executable, "-m", "tests.bench", "--quick", "--json", str(file)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=50)
    assert done.returncode == 0, done.stdout + done.stderr
    return done, msgspec.json.decode(file.read_bytes(), type=Report)


def test_everything_is_measured_once_and_nothing_else(run):
    _, report = run
    assert sorted(figure.key for figure in report.figures) == sorted(KEYS)
    assert report.quick
    assert not report.missing
    assert report.compiled


def test_figures_are_those_of_something_that_happened(run):
    _, report = run
    for figure in report.figures:
        value = figure.value
        assert value.count >= 1, figure.key
        assert 0 <= value.least <= value.p50 <= value.p99 <= value.most, figure.key
        assert value.most > 0 or figure.key == "idle_cpu", figure.key


def test_times_and_memory_stand_beside_a_floor_and_aims_where_they_were_set(run):
    _, report = run
    figures = {figure.key: figure for figure in report.figures}
    for key in (
        *("start_to_registered", "swap_to_list", "restart_to_list", "allocate_1", "preferred_1000"),
        *("at_rest_daemon_rss", "after_load_daemon_private"),
    ):
        assert figures[key].floor.value.p50 > 0
        assert figures[key].ratio == pytest.approx(figures[key].value.p50 / figures[key].floor.value.p50)
    assert {key for key, figure in figures.items() if figure.aim is not None} == WITH_AIM


def test_the_table_has_a_line_for_each_figure_and_fits_a_terminal(run):
    done, report = run
    lines = done.stdout.splitlines()
    for figure in report.figures:
        assert [line for line in lines if line.startswith(f"  {figure.text}")], figure.text
    assert max(map(len, lines)) <= 100
    assert not done.stderr


def test_percentiles_are_values_that_occurred():
    spread = build_spread([*range(1, 101)])
    assert (spread.count, spread.least, spread.p50, spread.p99, spread.most) == (100, 1, 50, 99, 100)
    assert build_spread([7.0]).p99 == 7.0


@pytest.mark.parametrize(("limit", "met", "words"), [(3.0, True, "met"), (2.0, False, "MISSED")])
def test_an_aim_is_met_only_below_its_limit(limit, met, words):
    floor = Floor(text="floor", value=build_spread([1.0]))
    by_value = build_figure("a", "a", [2.0], group="g", unit="s", under=limit)
    by_floor = build_figure("b", "b", [2.0], group="g", unit="s", floor=floor, under_floors=limit)
    assert by_value.aim.met is by_floor.aim.met is met
    assert len(re.findall(rf"\b{words}$", render_table(build_report(by_value, by_floor)), re.MULTILINE)) == 2


def test_what_cannot_be_measured_costs_no_other_figure_and_is_told():
    good = build_figure("a", "a", [1.0], group="good", unit="count")

    def fail():
        yield good
        raise TimeoutError("nothing came\nwithin 20 s")

    figures, missing = take_all({"bad": fail, "good": lambda: iter([good])})
    assert figures == (good, good)
    assert missing == (Missing(group="bad", why="TimeoutError: nothing came"),)
    assert "bad: NOT MEASURED: TimeoutError: nothing came" in render_table(build_report(good, missing=missing))


def test_memory_alone_is_shared_by_those_looked_at_and_nobody_else():
    command = [sys.executable, "-c", "print(flush=True); input()"]
    with (
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as one,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other,
    ):
        for process in (one, other):
            process.stdout.readline()
        (single,) = load_memory([one.pid])
        pair = load_memory([one.pid, other.pid])
        for process in (one, other):
            process.communicate(b"\n")
    assert single.alone == pytest.approx(single.rss, rel=0.02)
    for memory in pair:
        assert memory.private <= memory.proportional <= memory.rss
        assert memory.private < memory.alone < memory.rss


def build_report(*figures: Figure, missing: tuple[Missing, ...] = ()) -> Report:
    machine = Machine(cpu="c", cores=2, kernel="k", python="p", grpc="g", load_before=0, load_after=0)
    return Report(
        nvdp="0",
        at="2026-01-01T00:00:00Z",
        quick=True,
        seconds=1,
        driver="compiled",
        compiled=True,
        machine=machine,
        figures=figures,
        missing=missing,
    )
