"""What is told of the daemons of MPS: each change of state once, and a silence of their keeper once for all."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nvdp.model.mps import DaemonReport, DaemonSpec, MpsView, Phase
from nvdp.planning.mps_news import Told, announce_mps

A, B = "nvidia.com/a.mps", "nvidia.com/b.mps"
SILENT = MpsView(problem="nvdp mps does not answer: /mps/nvdp.json is older than 3.5s")


def daemon(phase: Phase = Phase.READY, **facts) -> DaemonReport:
    running = DaemonSpec(resource=A, gpus=("GPU-1", "GPU-2"))
    return DaemonReport(phase=phase, **({"running": running, "pid": 7} | facts))


def see(*views: MpsView, needed=(A, B)):
    """The reasons and sentences of each view, one after the other."""
    told, found = Told(), []
    for view in views:
        told, news = announce_mps(told, view, needed)
        found.append([(one.reason.word, one.text) for one in news])
    return found


def view(report: DaemonReport | None = None) -> MpsView:
    return MpsView(daemons={} if report is None else {A: report})


READY = ("MPSDaemonReady", f"{A}: the MPS control daemon answers on /mps/{A}/pipe, for GPU-1, GPU-2")
DIED = daemon(Phase.FAILED, exit_code=1, text="ended; next try in 2 s", last_lines=("x", "no CUDA"), restarts=3)
FAILED = (
    "MPSDaemonFailed",
    f"{A}: MPS control daemon is down: ended; next try in 2 s; exit code 1; its log ends with: no CUDA",
)


def test_a_daemon_that_answers_is_told_once_whatever_its_clients_do():
    assert see(view(), view(daemon()), view(daemon(clients=3)), view(daemon(servers={"9": "active"}))) == [
        [],
        [READY],
        [],
        [],
    ]


def test_a_death_is_told_with_exit_code_and_last_line_and_not_again_at_each_try():
    starting = view(daemon(Phase.STARTING, exit_code=1))
    assert see(view(daemon()), view(DIED), starting, view(DIED), starting, view(daemon())) == [
        [READY],
        [FAILED],
        [],
        [],
        [],
        [READY],
    ]


def test_an_end_for_another_reason_is_news():
    hangs = daemon(Phase.FAILED, text="does not answer within 2 s")
    _, first, second = see(view(daemon()), view(hangs), view(DIED))
    assert first == [("MPSDaemonFailed", f"{A}: MPS control daemon is down: does not answer within 2 s")]
    assert second == [FAILED]


def test_what_the_text_says_already_is_not_said_twice():
    report = daemon(Phase.FAILED, text="ended with exit code 1: no CUDA", exit_code=1, last_lines=("no CUDA",))
    ((found,),) = see(view(report))
    assert found == ("MPSDaemonFailed", f"{A}: MPS control daemon is down: ended with exit code 1: no CUDA")


def test_a_death_that_nobody_saw_is_told_when_its_successor_answers():
    again = daemon(pid=8, restarts=1, exit_code=139, last_lines=("fatal",))
    _, _, news = see(view(daemon()), view(daemon(Phase.STARTING, pid=8, restarts=1)), view(again))
    failed = f"{A}: MPS control daemon is down: it has ended; exit code 139; its log ends with: fatal"
    assert news == [("MPSDaemonFailed", failed), READY]


def test_a_daemon_that_was_started_anew_for_a_change_or_after_a_pause_did_not_fail():
    other = DaemonSpec(resource=A, gpus=("GPU-1", "GPU-2"), thread_percent=10)
    assert see(view(daemon()), view(daemon(pid=8, restarts=1, running=other)))[1] == [READY]
    for phase in (Phase.WAITING, Phase.STOPPING):
        assert see(view(daemon()), view(daemon(phase)), view(daemon(pid=8, restarts=1)))[1:] == [[], [READY]]


def test_what_forbids_a_daemon_is_told_as_such():
    refused = daemon(Phase.REFUSED, text="another control daemon has this GPU: PID 99, /tmp/nvidia-mps")
    assert see(view(refused), view(refused))[0] == [
        ("MPSUnsupported", f"{A}: no MPS control daemon: another control daemon has this GPU: PID 99, /tmp/nvidia-mps")
    ]


NOT_FREE = daemon(Phase.WAITING, running=None, pid=None, text="GPU-1: not free yet: pods hold it in another form")
NO_DRIVER = daemon(Phase.WAITING, running=None, pid=None, text="the driver is not there: libnvidia-ml.so.1 not found")
NO_DRIVER_TOLD = ("MPSDaemonFailed", f"{A}: no MPS control daemon: {NO_DRIVER.text}")


def test_that_a_daemon_waits_for_pods_is_no_failure_and_that_it_cannot_be_started_is_one():
    assert see(view(NOT_FREE), view(NO_DRIVER), view(NO_DRIVER), view(daemon())) == [[], [NO_DRIVER_TOLD], [], [READY]]


def test_a_daemon_that_was_killed_is_told_with_the_signal_and_that_once():
    killed = daemon(Phase.FAILED, exit_code=-9, text="control daemon 7 has ended, signal 9; started anew at once")
    ((told,), (other,)) = (*see(view(killed)), *see(view(daemon(Phase.FAILED, exit_code=-9))))
    assert told[1] == f"{A}: MPS control daemon is down: {killed.text}"
    assert other[1] == f"{A}: MPS control daemon is down: it does not answer; signal 9"


def test_silence_is_told_once_for_all_and_afterwards_who_answers():
    two = MpsView(daemons={A: daemon(), B: daemon()})
    _, silence, still, after = see(two, SILENT, MpsView(problem="there is no /mps/nvdp.json"), two)
    assert silence == [
        ("MPSDaemonFailed", f"{A}, {B}: {SILENT.problem}; no new pods there, running ones are left alone")
    ]
    assert still == []
    assert [reason for reason, _ in after] == ["MPSDaemonReady", "MPSDaemonReady"]


def test_where_no_daemon_is_needed_nothing_is_told():
    assert see(SILENT, view(daemon()), view(DIED), needed=()) == [[], [], []]
    assert see(view(daemon()), needed=(B,)) == [[]]


REPORTS = st.builds(
    DaemonReport,
    phase=st.sampled_from(Phase),
    pid=st.integers(1, 3),
    exit_code=st.none() | st.integers(0, 1),
    restarts=st.integers(0, 2),
    clients=st.integers(0, 2),
)
VIEWS = st.builds(
    MpsView, problem=st.sampled_from(["", "silent"]), daemons=st.dictionaries(st.sampled_from([A, B]), REPORTS)
)


@given(VIEWS)
def test_what_was_seen_before_is_no_news(seen):
    told, _ = announce_mps(Told(), seen, (A, B))
    assert announce_mps(told, seen, (A, B)) == (told, ())
