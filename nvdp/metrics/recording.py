"""What services count and time while they work: plain numbers, so that counting costs next to nothing.

Independent of the client library, whose import takes half as long as grpc's: it is loaded at the first scrape
(``exposition``), not on the way to the first registration.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate

import msgspec

from nvdp.metrics import catalog
from nvdp.metrics.catalog import METRICS, Kind, Metric

_SERIES_LIMIT = 500  # per metric: a scrape stays small whatever names turn up
_XID_LIMIT = 64  # different XIDs in the labels of one process (observability contract, section 6)
_OTHER = "other"


class Distribution(msgspec.Struct):
    """Observations of a histogram: how many fell into each bucket, the infinite one last, and their sum."""

    counts: list[int]
    total: float = 0.0

    def cumulated(self, bounds: Sequence[float]) -> list[tuple[str, float]]:
        """The buckets as they are exposed: upper bound, and how many observations were at most that."""
        names = [*(str(bound) for bound in bounds), "+Inf"]
        return list(zip(names, map(float, accumulate(self.counts)), strict=True))


class Metrics:
    """Counters and histograms, one method for each thing that happens. Any thread; never raises, never blocks."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._xids: set[int] = set()
        self._counts: dict[Metric, dict[tuple[str, ...], float]] = {
            metric: {} for metric in METRICS if metric.kind is Kind.COUNTER
        }
        self._distributions: dict[Metric, dict[tuple[str, ...], Distribution]] = {
            metric: {} for metric in METRICS if metric.kind is Kind.HISTOGRAM
        }

    def registration(self, resource: str, result: str) -> None:
        """``result`` is success or failure."""
        self._count(catalog.REGISTRATIONS, resource, result)

    def stream_lost(self, resource: str) -> None:
        self._count(catalog.STREAM_ENDS, resource)

    def rpc(self, resource: str, method: str, code: str, seconds: float) -> None:
        """``code`` is the name of a gRPC code."""
        self._count(catalog.RPC_REQUESTS, resource, method, code)
        self._time(catalog.RPC_DURATION, seconds, resource, method)

    def allocation_refused(self, resource: str, reason: str) -> None:
        self._count(catalog.ALLOCATIONS_REFUSED, resource, reason)

    def kubelet_restarted(self) -> None:
        self._count(catalog.KUBELET_RESTARTS)

    def list_latency(self, cause: str, seconds: float) -> None:
        """``cause`` is health, config, inventory or kubelet."""
        self._time(catalog.LIST_LATENCY, seconds, cause)

    def config_applied(self, seconds: float) -> None:
        """The last list of an edit was handed over ``seconds`` after the edit was seen."""
        self._time(catalog.CONFIG_APPLY, seconds)

    def config_edit(self, result: str) -> None:
        """``result`` is applied, refused or unchanged."""
        self._count(catalog.CONFIG_EDITS, result)

    def device_health_changed(self, uuid: str, to: str) -> None:
        """``to`` is healthy or unhealthy."""
        self._count(catalog.DEVICE_CHANGES, uuid, to)

    def xid_seen(self, uuid: str, xid: int, verdict: str) -> None:
        """``verdict`` is fatal or ignored. Beyond 64 different XIDs the rest are counted together."""
        with self._lock:
            if len(self._xids) < _XID_LIMIT:
                self._xids.add(xid)
            word = str(xid) if xid in self._xids else _OTHER
        self._count(catalog.XID_EVENTS, uuid, word, verdict)

    def memory_error_seen(self, uuid: str, kind: str) -> None:
        """``kind`` is single or double."""
        self._count(catalog.ECC_ERRORS, uuid, kind)

    def service_restarted(self, service: str) -> None:
        self._count(catalog.SERVICE_RESTARTS, service)

    def scan_took(self, seconds: float) -> None:
        self._time(catalog.SCAN_DURATION, seconds)

    def nvml_failed(self, call: str, error: str) -> None:
        """``call`` is an NVML function, ``error`` the field's word for its return code."""
        self._count(catalog.NVML_ERRORS, call, error)

    def nvml_timed_out(self, uuid: str) -> None:
        self._count(catalog.NVML_TIMEOUTS, uuid)

    def api_request(self, verb: str, resource: str, code: str) -> None:
        """``resource`` has its subresource (``nodes/status``); ``code`` is the HTTP status, or unreachable."""
        self._count(catalog.API_REQUESTS, verb, resource, code)

    def labels_written(self, result: str) -> None:
        """``result`` is written, removed or failed."""
        self._count(catalog.LABELS_WRITES, result)

    def read_counts(self) -> Iterator[tuple[Metric, dict[tuple[str, ...], float]]]:
        """Each counter with its values by label values. Copies."""
        for metric, series in self._counts.items():
            with self._lock:
                copy = dict(series)
            yield metric, copy

    def read_distributions(self) -> Iterator[tuple[Metric, dict[tuple[str, ...], Distribution]]]:
        """Each histogram with its distributions by label values. Copies."""
        for metric, series in self._distributions.items():
            with self._lock:
                copy = {labels: Distribution([*one.counts], one.total) for labels, one in series.items()}
            yield metric, copy

    def _count(self, metric: Metric, *labels: str) -> None:
        series = self._counts[metric]
        with self._lock:
            key = _bounded(series, labels)
            series[key] = series.get(key, 0.0) + 1.0

    def _time(self, metric: Metric, seconds: float, *labels: str) -> None:
        series = self._distributions[metric]
        with self._lock:
            key = _bounded(series, labels)
            found = series.get(key)
            if found is None:
                found = series[key] = build_distribution(metric)
            found.counts[bisect_left(metric.buckets, seconds)] += 1
            found.total += seconds


def build_distribution(metric: Metric) -> Distribution:
    """One without observations."""
    return Distribution([0] * (len(metric.buckets) + 1))


def _bounded(series: Mapping[tuple[str, ...], object], labels: tuple[str, ...]) -> tuple[str, ...]:
    return labels if labels in series or len(series) < _SERIES_LIMIT else (_OTHER,) * len(labels)
