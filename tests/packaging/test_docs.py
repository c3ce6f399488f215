"""docs/observability.md and docs/troubleshoot.md against the code, both ways."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from nvdp.metrics.catalog import METRICS, Kind
from nvdp.model.reasons import Cause, EventKind, Level, Reason
from nvdp.planning import event_rate
from nvdp.planning.node_condition import Condition, ConditionReason

ROOT = Path(__file__).resolve().parents[2]
OBSERVABILITY = (ROOT / "docs/observability.md").read_text()
TROUBLESHOOT = (ROOT / "docs/troubleshoot.md").read_text()


def section(name: str) -> str:
    return OBSERVABILITY.split(f"\n## {name}\n", 1)[1].split("\n## ", 1)[0]


def rows(name: str) -> list[list[str]]:
    """The cells of a section's first table, without its head."""
    lines = [line for line in section(name).splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines[2:]]


def not_built(kind: str) -> set[str]:
    (line,) = re.findall(rf"^- {kind}: (.+)$", section("Not built yet"), re.MULTILINE)
    return set(re.findall(r"`(\w+)`", line))


def test_the_reasons_are_those_of_the_code_with_their_levels():
    documented = {word: level for word, level, *_ in rows("Reasons")}
    assert len(documented) == len(rows("Reasons"))
    built = {word: level for word, level in documented.items() if word not in not_built("Reasons")}
    assert built == {reason.word: reason.level.name.lower() for reason in Reason}
    assert not_built("Reasons") <= set(documented)


def test_the_events_are_those_of_the_code():
    built = {word: event for word, _, event, *_ in rows("Reasons") if word not in not_built("Reasons")}
    assert built == {reason.word: reason.event.value for reason in Reason}
    assert {event for _, _, event, *_ in rows("Reasons")} == {kind.value for kind in EventKind}


def test_the_figures_of_events_are_those_of_the_code():
    text = section("Events")
    assert f"A burst of {event_rate.BURST}, then one in {event_rate.EVERY_S:.0f} s" in text
    assert f"the newest {event_rate.MOST_WAITING} are kept" in text
    assert f"After {event_rate.SERIES_END_S / 60:.0f} minutes without it" in text
    assert (event_rate.MOST_SINGLE, event_rate.MOMENT_S, event_rate.NOTE_BYTES) == (5, 2.0, 1024)
    assert "more than five devices within two seconds" in text
    assert f"Warning after {event_rate.LASTS_S:.0f} s" == EventKind.LASTING.value


def test_the_reasons_of_the_condition_are_those_of_the_code():
    documented = [(status, reason) for status, reason, _ in rows("Node condition")]
    expected = [(Condition(reason=reason, message="").status, reason.value) for reason in ConditionReason]
    assert documented == expected


def test_the_causes_are_those_of_the_code():
    (line,) = re.findall(r"^`XID`.*$", section("Reasons"), re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", line)) == {cause.value for cause in Cause}


def test_the_metrics_are_those_of_the_code_with_types_and_labels():
    documented = {}
    for name, kind, labels, *_ in rows("Metrics"):
        (word,) = re.findall(r"^[●○] `(nvdp_\w+)`$", name)
        documented[word] = (kind.removesuffix(" 1"), tuple(re.findall(r"\w+", labels)))
    built = {name: facts for name, facts in documented.items() if name not in not_built("Metrics")}
    assert built == {metric.name: (metric.kind.value, metric.labels) for metric in METRICS}
    assert not_built("Metrics") <= set(documented)


def test_constant_metrics_are_called_info_or_say_a_yes():
    ones = {name for name, kind, *_ in rows("Metrics") if kind == "gauge 1"}
    assert {name for name in ones if "_info`" not in name} == {"● `nvdp_device_withheld`"}


def test_the_buckets_of_calls_are_as_documented():
    (text,) = [meaning for name, *_, meaning in rows("Metrics") if "`nvdp_rpc_duration_seconds`" in name]
    (metric,) = [metric for metric in METRICS if metric.name == "nvdp_rpc_duration_seconds"]
    assert tuple(float(bound) for bound in re.findall(r"[\d.]+", text)) == metric.buckets


def load_alerts() -> list[dict]:
    (rules,) = re.findall(r"```yaml\n(.*?)```", section("Alerts"), re.DOTALL)
    return yaml.safe_load(rules)["groups"][0]["rules"]


def test_every_alert_uses_metrics_and_labels_that_exist():
    known = {}
    for metric in METRICS:
        known[metric.name] = set(metric.labels)
        if metric.kind is Kind.HISTOGRAM:
            known[f"{metric.name}_bucket"] = {*metric.labels, "le"}
    alerts = load_alerts()
    assert len({alert["alert"] for alert in alerts}) == len(alerts)
    for alert in alerts:
        for name, selector in re.findall(r"\b(nvdp_\w+)(?:\{([^}]*)\})?", alert["expr"]):
            assert name in known, alert["alert"]
            assert set(re.findall(r"(\w+)[=!]", selector)) <= known[name], alert["alert"]
        metric_labels = set().union(*(known.get(name, set()) for name in re.findall(r"\bnvdp_\w+", alert["expr"])))
        used = set(re.findall(r"\$labels\.(\w+)", alert.get("annotations", {}).get("summary", "")))
        assert used <= metric_labels | {"instance"}, alert["alert"]
        assert alert["labels"]["severity"] in {"critical", "warning", "info"}


def test_what_an_operator_ordered_raises_no_alert():
    exprs = {alert["alert"]: alert["expr"] for alert in load_alerts()}
    unless_paused = " unless on(instance) nvdp_paused == 1"
    alerts = {
        "NvdpNotReady": "nvdp_ready",
        "NvdpDriverDown": "nvdp_driver_up",
        "NvdpMpsDaemonDown": "nvdp_mps_daemon_up",
    }
    for alert, metric in alerts.items():
        assert exprs[alert] == f"{metric} == 0{unless_paused}"
    (left_out,) = re.findall(r'^nvdp_device_unhealthy_info\{reason!~"([\w|]+)"\} == 1$', exprs["NvdpDeviceUnhealthy"])
    assert set(left_out.split("|")) == {Cause.CORDONED.value, Cause.HELD.value, Cause.DRIVER_PAUSED.value}


def test_the_levels_of_the_log_are_those_that_can_be_chosen():
    assert "debug|info|warning|error" in section("Log")
    assert [level.name.lower() for level in Level] == ["debug", "info", "warning", "error"]


@pytest.mark.parametrize(
    ("code", "arguments"),
    [
        (0, ["--version"]),
        (0, ["config", "check", "config/time-slicing.yaml"]),
        (1, ["config", "check", "no/such/file"]),
        (2, ["config", "check", "pyproject.toml"]),
        (2, ["no-such-command"]),
        (2, ["run", "--metrics-port", "many"]),
    ],
)
def test_commands_exit_as_documented(code: int, arguments: list[str]):
    assert str(code) in {row[0] for row in rows("Exit codes")}
    command = [sys.executable, "-m", "nvdp", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=30)
    assert done.returncode == code, done.stderr
    if code:
        assert done.stderr


def test_every_exit_code_is_documented_once():
    assert [row[0] for row in rows("Exit codes")] == ["0", "1", "2", "3", "4", "130"]


def test_every_reason_has_its_section_and_no_section_is_left_over():
    sections = re.findall(r"^### (\w+)$", TROUBLESHOOT, re.MULTILINE)
    assert sorted(sections) == sorted(reason.word for reason in Reason)


def test_every_cause_is_explained():
    explained = set(re.findall(r"^\| (\w+) \| ", TROUBLESHOOT, re.MULTILINE)) - {"cause"}
    assert explained == {cause.value for cause in Cause}


def test_what_the_sections_about_mps_quote_is_what_the_code_says():
    source = " ".join(path.read_text() for path in (ROOT / "nvdp").rglob("*.py"))
    code = re.sub(r'"\s+f?"', "", re.sub(r"\{[^{}]*\}", "…", source))  # literals of several lines as one
    quoted = []
    for word in ("MPSDaemonFailed", "MPSUnsupported"):
        section_of_it = TROUBLESHOOT.split(f"\n### {word}\n", 1)[1].split("\n### ", 1)[0]
        for names in re.findall(r"^- (\*.+?\*)(?:,? with [^:]+)?: ", section_of_it, re.MULTILINE):
            quoted += re.findall(r"\*([^*]+)\*", names)
    assert len(quoted) > 10
    parts = {part.strip() for quote in quoted for part in re.split(r" … |\d[\d.]*", quote)}
    assert {part for part in parts if part not in code} == set()


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda path: path.name)
def test_links_within_the_documentation_lead_somewhere(page: Path):
    for target in re.findall(r"\]\(([^)]+)\)", page.read_text()):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        path = (page.parent / name).resolve() if name else page
        assert path.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.+)$", path.read_text(), re.MULTILINE)
            anchors = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
            assert anchor in anchors, target
