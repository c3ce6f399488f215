"""How one resource comes to be registered and stays so: the rules (a) to (e) of design invariant 7, and (f) below.

No thread of its own: the actor calls it, from one thread, at commands and when ``due_at`` has come.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from nvdp.errors import HostError, KubeletError
from nvdp.kubelet.plugin import Plugin
from nvdp.kubelet.registration import Registration
from nvdp.kubelet.server import PluginServer
from nvdp.kubelet.sockets import SocketIdentity, find_socket_identity
from nvdp.kubelet.streams import Stream
from nvdp.log import Log
from nvdp.model.reasons import Reason
from nvdp.services.retrying import Backoff, KubeletStreams, Retry, Timings


class Registrar:
    """Serves ``plugin`` and registers it with the kubelet behind ``kubelet_socket`` (None: only serves).

    ``call_later`` takes, from any thread, what the actor's thread shall call: the outcome of a Register under way.
    ``count`` is told of each Register that ended: success or failure. Nothing waits for the kubelet.
    """

    def __init__(
        self,
        plugin: Plugin,
        *,
        resource: str,
        kubelet_socket: Path | None,
        call_later: Callable[[Callable[[], None]], None],
        count: Callable[[str], None],
        log: Log,
        timings: Timings,
        rng: random.Random,
    ) -> None:
        self._plugin = plugin
        self._resource = resource
        self._kubelet_socket = kubelet_socket
        self._call_later = call_later
        self._count = count
        self._log = log
        self._timings = timings
        self._backoffs = {retry: Backoff(retry, rng) for retry in Retry}
        self._streams = KubeletStreams()
        self._attempt: Registration | None = None
        self._accepted = False
        self._refused = False
        self.known_to: SocketIdentity | None = None  # the kubelet that was last asked to register us
        self._try_at: float | None = None
        self._stream_due_at: float | None = None
        self._look_at: float | None = None
        self._doubted_at: float | None = None
        self._reclaim_from = float("-inf")
        self._kubelet: SocketIdentity | None = None
        self.server: PluginServer | None = None
        self.missing: str | None = "not registered yet"

    @property
    def registered(self) -> bool:
        """Whether the kubelet has accepted us and has taken a list since."""
        return self._accepted and self._streams.listed

    @property
    def doubtful(self) -> bool:
        """Whether a stream ended that was perhaps the kubelet's: whether it offers us it can be asked (``confirm``)."""
        return self._doubted_at is not None

    @property
    def due_at(self) -> float | None:
        """When ``step`` has something to do, in monotonic seconds; None while only events can change anything."""
        return min((at for at in (self._try_at, self._stream_due_at, self._look_at) if at is not None), default=None)

    def look(self) -> None:
        """Act on a kubelet that is new (a), and on a socket of ours that is gone or not ours any more (e)."""
        new_kubelet = self._see_kubelet()
        if new_kubelet:
            self._reclaim_from = float("-inf")
            for backoff in self._backoffs.values():
                backoff.reset()
        if new_kubelet or self.server is None or not self.server.is_ours():
            self._advance()

    def step(self) -> None:
        """Do what is due: the planned try, a new one because no stream has come (d), a look at a socket just made."""
        now = time.monotonic()
        if self._stream_due_at is not None and now >= self._stream_due_at:
            self._fail(f"the kubelet opened no ListAndWatch within {self._timings.no_stream_s:g}s", delay_s=0.0)
        if self._look_at is not None and now >= self._look_at:
            self._look_at = None
            self.look()
        if self._try_at is not None and now >= self._try_at:
            self._advance()

    def confirm(self, requested_at: float) -> None:
        """The kubelet was asked, at that time, and offers our devices: a stream that ended before was not its own.

        If another one is open, that is. A kubelet up to 1.36 that reads two streams of us and drops us at the end of
        the older one takes in a list of the newer one all the same, and offers what nobody will give it.
        """
        self._reclaim_from = float("-inf")
        self._backoffs[Retry.UNOFFERED].reset()
        if self._doubted_at is None or not self._streams.open:
            return
        if requested_at >= self._doubted_at + self._timings.end_seen_s:
            self._doubted_at = self._try_at = None
            self._backoffs[Retry.DOUBTFUL].reset()

    def reclaim(self) -> None:
        """Take back what the kubelet has from us and does not offer (f): as with a socket that is gone.

        It happens when another plugin of the resource took our place and went: our stream is open and worth nothing.
        Where it does not help, it is tried more and more rarely: each try costs the node its devices for a second.
        """
        now = time.monotonic()
        if self._accepted and self._try_at is None and self._attempt is None and now >= self._reclaim_from:
            self._reclaim_from = now + self._backoffs[Retry.UNOFFERED].next_delay_s()
            self._log(Reason.STREAM_LOST, "the kubelet does not offer our devices any more; registering again")
            self._refused = True
            self._advance()

    def stream_opened(self, stream: Stream) -> None:
        self._streams.add(stream)
        if self._accepted and self._streams.open:
            self._stream_due_at = None
            self.missing = None

    def stream_ended(self, stream: Stream) -> None:
        """A stream ended; if it may have been the kubelet's, register again (b): it does not come back by itself."""
        urgency = self._streams.remove(stream)
        # Not accepted: the outcome of the call under way decides, or the next try is planned already.
        if urgency is None or stream.asked or not self._accepted:
            return
        if urgency is Retry.LOST or self._try_at is None:
            self._lose(urgency, opened_at=stream.opened_at)
        else:
            self._doubted_at = time.monotonic()

    def close(self) -> None:
        """Give up what is under way and stop serving."""
        self._end_attempt()
        self._try_at = self._stream_due_at = self._look_at = self._doubted_at = None
        server, self.server = self.server, None
        self._accepted = False
        if server is not None:
            server.stop(grace_s=self._timings.grace_s)

    def _see_kubelet(self) -> bool:
        """Look who the kubelet is; whether it is there and not the one seen before."""
        before = self._kubelet
        self._kubelet = find_socket_identity(self._kubelet_socket) if self._kubelet_socket is not None else None
        return self._kubelet is not None and self._kubelet != before

    def _advance(self) -> None:
        """Take the next step to being registered: serve if need be, then register, if there is a kubelet.

        Whatever was under way or planned before is over: this attempt is newer.
        """
        self._end_attempt()
        self._try_at = self._stream_due_at = self._doubted_at = None
        if (self.server is None or self._refused or not self.server.is_ours()) and not self._serve_anew():
            return
        self._see_kubelet()
        if self._kubelet_socket is None:
            self.missing = "registration is off: no kubelet socket is set"
        elif self._kubelet is None:
            self._wait_for_kubelet()
        else:
            self._register(self._kubelet, self._kubelet_socket)

    def _serve_anew(self) -> bool:
        """Serve on a new socket, then end what is left of the old one; whether to register at once.

        A kubelet that knew the old one is given time to see its streams end.
        """
        try:
            fresh = self._plugin.serve(probe_s=self._timings.probe_s)
        except HostError as error:
            self._fail(str(error), delay_s=self._backoffs[Retry.NOT_SERVED].next_delay_s())
            return False
        self._backoffs[Retry.NOT_SERVED].reset()
        old, self.server, self._refused = self.server, fresh, False
        self._look_at = time.monotonic() + self._timings.look_again_s
        if old is None:
            return True
        self._accepted = False
        self._see_kubelet()
        settles = old.streams.count > 0 and self._kubelet is not None and self._kubelet == self.known_to
        old.stop(grace_s=self._timings.grace_s)
        if settles:
            self.missing = "our socket was replaced; registering again"
            self._try_at = time.monotonic() + self._timings.settle_s
        return not settles

    def _wait_for_kubelet(self) -> None:
        missing = f"{self._kubelet_socket}: no such socket; waiting for the kubelet"
        if self.missing != missing:
            self._log(Reason.REGISTRATION_FAILED, missing)
        self.missing = missing

    def _register(self, kubelet: SocketIdentity, kubelet_socket: Path) -> None:
        assert self.server is not None
        self._streams.begin(time.monotonic())
        self._accepted = False
        self.known_to = kubelet  # from here on it may know us, whatever comes of the call
        try:
            self._attempt = Registration(
                kubelet_socket,
                endpoint=self.server.endpoint,
                resource=self._resource,
                pre_start_required=self._plugin.pre_start_required,
                done=lambda attempt, error: self._call_later(partial(self._take_outcome, attempt, error)),
            )
        except KubeletError as error:
            self._take_error(error)

    def _take_outcome(self, attempt: Registration, error: KubeletError | None) -> None:
        if attempt is not self._attempt:
            return  # given up for a newer one
        self._end_attempt()
        if error is not None:
            self._take_error(error)
            return
        self._count("success")
        for retry in (Retry.UNREACHABLE, Retry.REFUSED):
            self._backoffs[retry].reset()
        now = time.monotonic()
        self._accepted = True
        self._streams.answer(now)
        if self._streams.open:
            self.missing = None
        elif self._streams.came:  # and went; if it was somebody else's, the kubelet's is about to come
            self.missing = "registered; the first ListAndWatch ended"
            self._lose(Retry.DOUBTFUL, opened_at=now)
        else:
            self.missing = "registered; waiting for the kubelet's ListAndWatch"
            self._stream_due_at = now + self._timings.no_stream_s

    def _take_error(self, error: KubeletError) -> None:
        """The try failed (c); after a refusal the next one serves under a new name."""
        self._count("failure")
        self._refused = error.refused
        retry = Retry.REFUSED if error.refused else Retry.UNREACHABLE
        self._fail(str(error), delay_s=self._backoffs[retry].next_delay_s())

    def _fail(self, text: str, *, delay_s: float) -> None:
        """Try again after ``delay_s``, for ever."""
        self._plan_try(text, delay_s)
        self._log(Reason.REGISTRATION_FAILED, f"{text}; trying again in {delay_s:.2f}s")

    def _lose(self, urgency: Retry, *, opened_at: float) -> None:
        now = time.monotonic()
        backoff = self._backoffs[urgency]
        if now - opened_at >= self._timings.stable_s:
            backoff.reset()
        delay_s = backoff.next_delay_s()
        again = f"registering again in {delay_s:.2f}s"
        if urgency is Retry.LOST:
            text = "the kubelet ended its ListAndWatch"
            self._plan_try(text, delay_s)
            self._log(Reason.STREAM_LOST, f"{text}; {again}")
        else:
            self._try_at = now + delay_s  # until then we count as registered: the kubelet's may be another one
            self._doubted_at = now
            text = "a ListAndWatch ended that may have been the kubelet's"
            self._log(Reason.STREAM_LOST, f"{text}; {again}, unless the kubelet still offers our devices")

    def _plan_try(self, missing: str, delay_s: float) -> None:
        self.missing = missing
        self._accepted = False
        self._stream_due_at = self._doubted_at = None
        self._try_at = time.monotonic() + delay_s

    def _end_attempt(self) -> None:
        if self._attempt is not None:
            self._attempt.end()
            self._attempt = None
