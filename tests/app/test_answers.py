"""What the metrics port asks of whom, at the moment it is asked."""

from __future__ import annotations

import queue

import pytest

from nvdp.app.answers import Answers
from nvdp.metrics.recording import Metrics
from nvdp.model.status import Status


class Actor:
    def __init__(self, *, answers: bool):
        self._answers = answers

    def probe(self, timeout_s: float) -> bool:
        return self._answers


def build_answers(*, actors=(), problem=None, loop_turns=True):
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
