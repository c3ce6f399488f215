"""What the metrics port and the control socket ask of whom, at the moment they are asked."""

from __future__ import annotations

import http.client
import queue
import socket

import msgspec
import pytest

from nvdp.app.answers import Answers
from nvdp.http.routes import CLEAR_PATH, PAUSE_PATH, RESUME_PATH
from nvdp.http.server import HttpServer
from nvdp.metrics.recording import Metrics
from nvdp.model.orders import Carried
from nvdp.model.status import Status, Trouble


class Actor:
    def __init__(self, *, answers: bool):
        self._answers = answers

    def probe(self, timeout_s: float) -> bool:
        return self._answers


class Orders:
    """Carries out every order, and remembers it."""

    def __init__(self):
        self.given = []

    def pause(self, note):
        return self._carry_out("pause", note)

    def resume(self):
        return self._carry_out("resume")

    def clear(self, device):
        return self._carry_out("clear", device)

    def _carry_out(self, *order):
        self.given.append(order)
        return Carried(done=True, text=" ".join(order))


def build_answers(*, actors=(), problem=None, loop_turns=True, troubles=(), refreshed=None, orders=None):
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
        orders=orders or Orders(),
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


@pytest.mark.parametrize(
    ("path", "query", "order"),
    [
        (PAUSE_PATH, {}, ("pause", "")),
        (PAUSE_PATH, {"note": "  another driver "}, ("pause", "another driver")),
        (RESUME_PATH, {}, ("resume",)),
        (CLEAR_PATH, {"device": "GPU-9A1B77C0-d33e-4f0b-8f7e-2b1d6a0c9e55"}, None),
        (CLEAR_PATH, {"device": "3"}, ("clear", "3")),
    ],
)
def test_an_order_goes_to_whom_it_concerns_with_its_words_as_they_are_meant(path, query, order):
    orders = Orders()
    _, answers = build_answers(orders=orders)
    carried = msgspec.json.decode(answers.control_orders[path](query).body, type=Carried)
    expected = order or ("clear", "GPU-9a1b77c0-d33e-4f0b-8f7e-2b1d6a0c9e55")
    assert orders.given == [expected]
    assert carried == Carried(done=True, text=" ".join(expected))


@pytest.mark.parametrize(
    ("path", "query"),
    [
        (PAUSE_PATH, {"note": "x" * 201}),
        (PAUSE_PATH, {"note": "one line\nand a forged one"}),
        (CLEAR_PATH, {}),
        (CLEAR_PATH, {"device": "the third"}),
        (CLEAR_PATH, {"device": "MIG-9a1b77c0-d33e-4f0b-8f7e-2b1d6a0c9e55"}),
    ],
)
def test_an_order_in_words_that_no_command_sends_is_refused(path, query):
    orders = Orders()
    _, answers = build_answers(orders=orders)
    assert answers.control_orders[path](query).status == 400
    assert orders.given == []


def test_the_metrics_port_takes_no_order_by_whatever_method():
    orders = Orders()
    _, answers = build_answers(orders=orders)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = HttpServer(port=port, routes=answers.routes, log=lambda *_, **__: None, defect=lambda _: None)
    server.start()
    try:
        assert server.wait_listening(5)
        for path in (*answers.control_orders, *answers.routes, "/"):
            for method in ("POST", "PUT", "PATCH", "DELETE", "GET"):
                if method == "GET" and path in answers.routes:
                    continue
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
                connection.request(method, f"{path}?device=3&note=x")
                assert connection.getresponse().status in {404, 405}
                connection.close()
    finally:
        server.stop()
    assert orders.given == []
