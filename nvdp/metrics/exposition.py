"""Turns what was recorded, and the daemon's state, into the text that Prometheus scrapes.

The only module that knows the client library. It is imported at the first scrape (see ``recording``).
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Sequence

from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from nvdp.metrics import catalog
from nvdp.metrics.catalog import METRICS, Metric
from nvdp.metrics.gauges import build_gauges, build_zeroes
from nvdp.metrics.recording import Distribution, Metrics, build_distribution
from nvdp.model.status import Status

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class DaemonCollector(Collector):
    """All metrics of the catalogue, read at the moment of a scrape. ``get_status`` may be called from any thread."""

    def __init__(self, metrics: Metrics, get_status: Callable[[], Status], *, version: str, revision: str) -> None:
        self._metrics = metrics
        self._get_status = get_status
        self._build = (version, revision, platform.python_version())

    def describe(self) -> Iterator[Family]:
        """The names, so that a registry need not collect to learn them."""
        yield from _build_families().values()

    def collect(self) -> Iterator[Family]:
        status = self._get_status()
        families = _build_families()
        _add(families, catalog.BUILD_INFO, self._build, 1.0)
        for metric, labels, value in build_gauges(status):
            _add(families, metric, labels, value)
        zeroes: dict[Metric, list[tuple[str, ...]]] = {}
        for metric, labels in build_zeroes(status):
            zeroes.setdefault(metric, []).append(labels)
        for metric, counts in self._metrics.read_counts():
            for labels, value in {**dict.fromkeys(zeroes.get(metric, ()), 0.0), **counts}.items():
                _add(families, metric, labels, value)
        for metric, found in self._metrics.read_distributions():
            empty = {labels: build_distribution(metric) for labels in zeroes.get(metric, ())}
            for labels, distribution in {**empty, **found}.items():
                _add_distribution(families, metric, labels, distribution)
        yield from families.values()


class Exposition:
    """The body of ``/metrics``, of ``CONTENT_TYPE``: a registry of its own, with the client library's ``process_*`` and
    ``python_gc_*`` beside the daemon's metrics. Any thread.
    """

    def __init__(self, collector: Collector) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(collector)
        ProcessCollector(registry=self._registry)
        GCCollector(registry=self._registry)

    def render(self) -> bytes:
        return generate_latest(self._registry)


def _build_families() -> dict[Metric, Family]:
    return {metric: Family(metric.name.removesuffix("_total"), metric.help, metric.kind.value) for metric in METRICS}


def _add(families: dict[Metric, Family], metric: Metric, labels: Sequence[str], value: float) -> None:
    families[metric].add_sample(metric.name, dict(zip(metric.labels, labels, strict=True)), value)


def _add_distribution(
    families: dict[Metric, Family], metric: Metric, labels: Sequence[str], distribution: Distribution
) -> None:
    named = dict(zip(metric.labels, labels, strict=True))
    buckets = distribution.cumulated(metric.buckets)
    for bound, count in buckets:
        families[metric].add_sample(f"{metric.name}_bucket", {**named, "le": bound}, count)
    families[metric].add_sample(f"{metric.name}_count", named, buckets[-1][1])
    families[metric].add_sample(f"{metric.name}_sum", named, distribution.total)
