"""What the metrics port asks of whom, at the moment it is asked."""

from __future__ import annotations

import queue

import msgspec
import pytest

from nvdp.app.answers import Answers
from nvdp.metrics.recording import Metrics
from nvdp.model.status import Status, Trouble


class Actor:
    def __init__(self, *, answers: bool):
        self._answers = answers

    def probe(self, timeout_s: float) -> bool:
        return self._answers


def build_answers(*, actors=(), problem=None, loop_turns=True, troubles=(), refreshed=None):
    refreshed = [] if refreshed is None else refreshed
    events = queue.SimpleQueue()

    def post(event):
        events.put(event)
        if loop_turns:
            event.answered.set()

    return events, Answers(
        metrics=Metrics(),
        post=post,
        count_events=events.qsize,
        get_actors=lambda: dict(actors),
        container_problem=lambda: problem,
        refresh_holders=refreshed.append,
        find_troubles=lambda: troubles,
    )


def test_events_are_counted_when_one_asks_not_when_the_loop_last_turned():
    events, answers = build_answers()
    answers.publish(Status(ready=True))
    for _ in range(7):
        events.put(None)

    body = answers.routes["/metrics"]({}).body.decode()

    assert "nvdp_event_queue_length 7.0" in body
    assert "nvdp_ready 1.0" in body


@pytest.mark.parametrize(
    ("actors", "problem", "told"),
    [
        ({}, None, []),
        ({"nvidia.com/gpu": Actor(answers=True)}, None, []),
        ({"a": Actor(answers=True), "b": Actor(answers=False)}, None, ["b: its own socket does not answer"]),
        ({}, "this container still has the old one", ["this container still has the old one"]),
    ],
)
def test_health_is_what_the_loop_the_sockets_and_the_container_say(actors, problem, told):
    _, answers = build_answers(actors=actors, problem=problem)

    response = answers.routes["/healthz"]({"format": "text"})

    assert response.status == (503 if told else 200)
    assert [line.split(maxsplit=1)[1] for line in response.body.decode().splitlines() if "PROBLEM" in line] == told


def ask_status(answers):
    (route,) = answers.control_routes.values()
    return msgspec.json.decode(route({}).body, type=Status)


def test_the_status_is_that_of_the_last_turn_with_what_the_services_have_to_complain_of():
    own, others = Trouble(reason="HoldersUnknown", text="unknown"), Trouble(reason="PortTaken", text="taken")
    refreshed = []
    events, answers = build_answers(troubles=(others,), refreshed=refreshed)
    answers.publish(Status(ready=True, troubles=(own,)))
    assert ask_status(answers) == Status(ready=True, troubles=(own, others), queue_length=1)
    assert events.qsize() == 1
    assert refreshed == [0.5]


def test_a_loop_that_does_not_turn_comes_first_and_its_last_status_is_told_all_the_same():
    _, answers = build_answers(loop_turns=False, troubles=(Trouble(reason="PortTaken", text="taken"),))
    answers.publish(Status(ready=True))
    status = ask_status(answers)
    assert status.ready
    assert [trouble.text.partition(":")[0] for trouble in status.troubles] == [
        "the event loop has not answered within 2s",
        "taken",
    ]
    assert "a new container" in status.troubles[0].remedy


@pytest.mark.parametrize(
    ("status", "reason"),
    [(Status(reason="DriverMissing"), "DriverMissing"), (Status(ready=True, reason=""), "RegistrationFailed")],
)
def test_a_container_that_is_worn_out_says_that_only_a_new_one_helps(status, reason):
    _, answers = build_answers(problem="this container may not open /dev/nvidiactl")
    answers.publish(status)
    (trouble,) = ask_status(answers).troubles
    assert (trouble.reason, trouble.text) == (reason, "this container may not open /dev/nvidiactl")
    assert "a new container" in trouble.remedy
