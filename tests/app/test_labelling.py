"""The labels of a node by its options: on a real API server, over outages and restarts, and taken away by order."""

from __future__ import annotations

import threading

import pytest

from nvdp.app.labelling import build_label_service, remove_labels
from nvdp.cluster.access import ServiceAccountAccess
from nvdp.cluster.api import Api
from nvdp.cluster.namespace import find_namespace
from nvdp.config.options import parse_options
from nvdp.errors import ClusterError, HostError, UsageError
from nvdp.host.labels_hold import LabelsHold
from nvdp.model.cluster import ObjectSeen
from nvdp.model.inventory import Driver, Inventory
from nvdp.planning.node_facts import LabelFacts
from tests.cluster.server import ApiServer
from tests.cluster.server.faults import answer, drop, garbage
from tests.daemon.process import LIMIT_S, wait_until
from tests.labelling.objects import DAEMON_SET, OWN_POD, is_at_rest
from tests.planning.labelling import full
from tests.planning.values import parse

FEATURE = "nvidia-features-for-gpu-a3"
COUNT = "nvidia.com/gpu.count"
DRIVER = Driver(version="580.65.06", cuda_version="13.0")
TO_FILE = "flags: {useNodeFeatureAPI: false, gfd: {outputFile: %s}}"


def facts(count, text="version: v1"):
    return LabelFacts(config=parse(text), inventory=Inventory(driver=DRIVER, gpus=tuple(map(full, range(count)))))


class Bench:
    """A node of a cluster, with the plugin's part that labels it."""

    def __init__(self, server, tmp_path):
        self.server = server
        self.account = server.write_service_account(tmp_path / "account")
        self.run_dir = tmp_path / "run"
        self.run_dir.mkdir()
        self.log = []
        self.services = []
        self.apis = []
        owner = {**DAEMON_SET, "blockOwnerDeletion": True}
        metadata = {"name": "nvdp-x7", "namespace": "nvdp", "ownerReferences": [owner]}
        self.pod = server.store.put("pods", {"metadata": metadata})
        server.store.put("nodes", {"metadata": {"name": "gpu-a3", "labels": {"team": "a"}}})
        self.kubeconfig = server.write_kubeconfig(tmp_path / "kubeconfig")

    def parse(self, target, **more):
        flags = {"write-labels": target, "node-name": "gpu-a3", "pod-name": "nvdp-x7", "namespace": "nvdp"}
        flags |= {"run-dir": str(self.run_dir), "kubeconfig": str(self.kubeconfig)}
        return parse_options({**flags, **more}, {})[0]

    def build_api(self):
        self.apis.append(Api(ServiceAccountAccess(self.account, environ=self.server.environ)))
        return self.apis[-1]

    def start(self, target="auto", *, first_delay_s=0.0, **more):
        service = build_label_service(
            self.parse(target, **more),
            api=self.build_api,
            namespace=find_namespace("", service_account=self.account),
            first_delay_s=first_delay_s,
            log=lambda reason, text, **_: self.log.append((reason.word, text)),
            count=lambda _: None,
        )
        self.services.append(service)
        service.start()
        return service

    def get(self, resource="nodefeatures", name=FEATURE, namespace="nvdp"):
        return self.server.store.find(resource, name, namespace=namespace)

    def wait_count(self, count):
        def is_there():
            found = self.get()
            return found and found["spec"]["labels"].get(COUNT) == str(count)

        wait_until(is_there, what=f"{count} GPUs in the object")

    @property
    def asked(self):
        return [(entry.verb, entry.resource) for entry in self.server.journal.of()]


@pytest.fixture
def bench(tmp_path):
    with ApiServer() as server:
        bench = Bench(server, tmp_path)
        yield bench
        for service in bench.services:  # their threads rest
            service.want(LabelFacts(config=None, inventory=Inventory(driver=DRIVER)))
            wait_until(lambda service=service: service._began_at is None, what="the end of its requests")
        for api in bench.apis:
            api.close()


def test_a_node_is_labelled_by_three_requests_and_a_restart_only_looks(bench):
    bench.start().want(facts(2))
    bench.wait_count(2)
    assert bench.asked == [("get", "nodefeatures"), ("get", "pods"), ("create", "nodefeatures")]
    found = bench.get()
    assert found["spec"]["labels"]["nvidia.com/gpu.product"] == "MOCKMODEL"
    assert found["spec"]["labels"]["nvidia.com/gfd.timestamp"].isdecimal()
    owners = [DAEMON_SET, {**OWN_POD, "uid": bench.pod["metadata"]["uid"]}]
    assert found["metadata"]["ownerReferences"] == owners
    bench.server.journal.clear()
    again = bench.start()
    again.want(facts(2))
    wait_until(lambda: len(bench.asked) == 2, what="two requests")
    again.want(facts(2, "devices: {rescanInterval: 20s}"))  # other facts, the same labels
    again.want(facts(3))
    bench.wait_count(3)
    assert bench.asked == [("get", "nodefeatures"), ("get", "pods"), ("patch", "nodefeatures")]


def test_nothing_is_labelled_without_a_configuration_in_force(bench):
    service = bench.start()
    service.want(LabelFacts(config=None, inventory=Inventory(driver=DRIVER, gpus=(full(),))))
    wait_until(lambda: is_at_rest(service), what="a plan")
    service.want(facts(1))
    bench.wait_count(1)
    service.want(LabelFacts(config=None, inventory=Inventory(driver=DRIVER)))
    wait_until(lambda: is_at_rest(service), what="a plan")
    bench.wait_count(1)


def test_an_api_server_that_is_away_over_a_restart_changes_nothing_and_gets_what_is_new(bench):
    bench.start().want(facts(2))
    wait_until(lambda: bench.log, what="labels")  # else the answer may be lost with the server
    bench.server.stop()
    service = bench.start()
    service.want(facts(3))
    wait_until(lambda: service.trouble, what="a trouble")
    assert service.trouble.text.endswith("; the labels that are there stay")
    bench.server.start()
    bench.wait_count(3)
    wait_until(lambda: service.trouble is None, what="no trouble")
    assert [word for word, _ in bench.log] == ["LabelsWritten", "LabelsWritten"]


@pytest.mark.parametrize(
    ("verb", "action"),
    [
        ("get", drop()),
        ("get", answer(500)),
        ("get", garbage(b"{")),
        ("create", garbage(b"[]")),
        ("create", garbage(b'{"spec": 1}')),
        ("create", answer(429, retry_after="0")),
    ],
    ids=["dropped", "500", "no json", "a list", "no object", "429"],
)
def test_whatever_goes_wrong_once_the_labels_come(bench, verb, action):
    bench.server.faults.add(action, verb=verb, resource="nodefeatures", times=1)
    bench.start().want(facts(2))
    bench.wait_count(2)


def test_a_right_that_is_missing_is_told_with_its_name(bench):
    bench.server.faults.add(answer(403, "no", reason="Forbidden"), verb="create")
    service = bench.start()
    service.want(facts(2))
    wait_until(lambda: bench.log, what="a line, which is told after it is shown")
    assert service.trouble
    ((word, text),) = bench.log
    assert word == "LabelsFailed"
    assert "create" in text
    assert "nodefeatures" in text


def test_the_node_itself_is_labelled_with_one_request_where_it_is_watched(bench):
    service = bench.start("node", first_delay_s=0.2)
    service.see(ObjectSeen(object=bench.get("nodes", "gpu-a3", ""), at=0.0))
    service.want(facts(2))
    wait_until(lambda: bench.asked, what="a request")
    wait_until(lambda: COUNT in bench.get("nodes", "gpu-a3", "")["metadata"]["labels"], what="labels")
    node = bench.get("nodes", "gpu-a3", "")["metadata"]
    assert bench.asked == [("patch", "nodes")]
    assert (node["labels"]["team"], node["labels"][COUNT]) == ("a", "2")
    assert "gpu.count" in node["annotations"]["nvidia.com/nvdp.labels"].split(",")


def test_a_file_waits_for_no_api_server_and_an_edit_moves_the_labels(bench, tmp_path):
    path = tmp_path / "features" / "gfd"
    path.parent.mkdir()
    service = bench.start(first_delay_s=0.0)
    service.want(facts(2))
    bench.wait_count(2)
    service.want(facts(2, TO_FILE % path))
    wait_until(lambda: bench.get() is None, what="no object")
    assert f"{COUNT}=2\n" in path.read_text()
    bench.server.stop()
    bench.start("file", first_delay_s=60.0).want(facts(3, TO_FILE % path))
    wait_until(lambda: f"{COUNT}=3\n" in path.read_text(), what="the file")
    bench.server.start()


@pytest.mark.parametrize("file", ["''", "gfd", "./gfd"])
def test_a_file_that_is_no_absolute_path_is_a_trouble_and_nothing_is_printed(bench, file, capsys):
    service = bench.start()
    service.want(facts(2, TO_FILE % file))
    wait_until(lambda: service.trouble, what="a trouble")
    assert "flags.gfd.outputFile" in service.trouble.text
    assert capsys.readouterr().out == ""


def test_without_a_namespace_nothing_is_asked(bench, tmp_path):
    service = build_label_service(
        bench.parse("node-feature"),
        api=bench.build_api,
        namespace=find_namespace("", service_account=tmp_path / "none"),
        first_delay_s=0.0,
        log=lambda *_, **__: None,
        count=lambda _: None,
    )
    service.start()
    service.want(facts(1))
    wait_until(lambda: service.trouble, what="a trouble")
    assert "set --namespace or NAMESPACE" in service.trouble.text
    assert bench.asked == []
    service.want(LabelFacts(config=None, inventory=Inventory(driver=DRIVER)))


# By order


@pytest.mark.parametrize(
    ("target", "place"), [("node-feature", f"nodefeature nvdp/{FEATURE}"), ("node", "node gpu-a3")]
)
def test_labels_are_taken_away_by_order_and_the_daemon_leaves_it_at_that(bench, target, place):
    service = bench.start(target)
    service.want(facts(2))
    wait_until(lambda: bench.log, what="labels")
    node = bench.get("nodes", "gpu-a3", "")
    service.see(ObjectSeen(object=node, at=0.0))
    removed = remove_labels(bench.parse(target), parse(""))
    assert (removed.place, removed.is_held) == (place, True)
    assert COUNT in removed.keys
    assert bench.get() is None
    assert bench.get("nodes", "gpu-a3", "")["metadata"]["labels"] == {"team": "a"}
    assert remove_labels(bench.parse(target), parse("")).keys == ()
    bench.server.journal.clear()
    service.see(ObjectSeen(object=bench.get("nodes", "gpu-a3", ""), at=0.0))
    service.want(facts(3))
    service.look()
    wait_until(lambda: is_at_rest(service), what="a plan")
    assert bench.asked == []
    bench.start(target).want(facts(3))
    wait_until(lambda: ("patch", "nodes") in bench.asked or bench.get() is not None, what="labels again")


@pytest.mark.parametrize("target", ["node-feature", "node"])
def test_an_order_that_comes_in_the_middle_of_a_write_waits_for_its_end(bench, target):
    """Else what the daemon wrote would stay, and no other order would find it."""
    service = bench.start(target)
    service.want(facts(2))
    wait_until(lambda: bench.log, what="labels")
    begun, removed = threading.Event(), threading.Event()

    def slowly(_):
        begun.set()
        removed.wait(0.5)

    bench.server.faults.add(slowly, verb="patch", times=1)
    service.want(facts(3))
    assert begun.wait(LIMIT_S)
    assert COUNT in remove_labels(bench.parse(target), parse("")).keys
    removed.set()
    wait_until(lambda: is_at_rest(service), what="the end of the write")
    assert bench.get() is None
    assert bench.get("nodes", "gpu-a3", "")["metadata"]["labels"] == {"team": "a"}
    assert service.trouble is None


def test_a_file_is_taken_away_by_order_where_the_configuration_says_it_is(bench, tmp_path):
    path = tmp_path / "gfd"
    path.write_text("nvidia.com/gpu.count=2\n")
    bench.run_dir.rmdir()
    removed = remove_labels(bench.parse("file"), parse(TO_FILE % path))
    assert (removed.place, removed.keys, removed.is_held) == (str(path), (COUNT,), False)
    assert not path.exists()


@pytest.mark.parametrize(
    ("target", "more", "said"),
    [
        ("none", {}, "--write-labels"),
        ("node", {"node-name": ""}, "--node-name"),
        ("auto", {"node-name": ""}, "NODE_NAME"),
    ],
)
def test_an_order_that_says_too_little_is_wrong_usage(bench, target, more, said):
    with pytest.raises(UsageError, match=said):
        remove_labels(bench.parse(target, **more), parse(""))
    assert bench.asked == []


def test_an_order_that_cannot_be_carried_out_is_an_error_in_one_line(bench):
    bench.server.stop()
    with pytest.raises(ClusterError) as failed:
        remove_labels(bench.parse("node"), parse(""))
    assert "\n" not in str(failed.value)
    bench.server.start()


def test_an_order_that_fails_does_not_undo_one_that_was_carried_out(bench):
    service = bench.start("node")
    service.want(facts(2))
    wait_until(lambda: bench.log, what="labels")
    remove_labels(bench.parse("node"), parse(""))
    bench.server.faults.add(answer(500), verb="get", resource="nodes", times=1)
    with pytest.raises(ClusterError):
        remove_labels(bench.parse("node"), parse(""))
    service.want(facts(3))
    wait_until(lambda: is_at_rest(service), what="a plan")
    assert bench.get("nodes", "gpu-a3", "")["metadata"]["labels"] == {"team": "a"}


def test_an_order_that_fails_at_once_leaves_the_daemon_writing(bench):
    service = bench.start("node")
    service.want(facts(2))
    wait_until(lambda: bench.log, what="labels")
    bench.server.faults.add(answer(500), verb="patch", resource="nodes", times=1)
    with pytest.raises(ClusterError):
        remove_labels(bench.parse("node"), parse(""))
    service.want(facts(3))
    wait_until(lambda: bench.get("nodes", "gpu-a3", "")["metadata"]["labels"][COUNT] == "3", what="the change")


def test_a_mark_from_before_is_forgotten_at_the_start(bench):
    assert LabelsHold(bench.run_dir).set()
    bench.start().want(facts(2))
    bench.wait_count(2)
    assert not LabelsHold(bench.run_dir).is_set


def test_a_mark_that_cannot_be_made_or_removed_is_said(tmp_path):
    path = tmp_path / "labels-removed"
    path.mkdir()
    hold = LabelsHold(tmp_path)
    assert not hold.is_set
    with pytest.raises(HostError, match="cannot be removed"):
        hold.clear()
    path.rmdir()
    assert not LabelsHold(tmp_path / "none").set()
    hold.clear()


@pytest.mark.parametrize(("content", "expected"), [("nvdp\n", "nvdp"), ("", ""), ("a/b", ""), ("é", ""), ("a\0b", "")])
def test_the_namespace_is_that_of_the_service_account_unless_it_is_given(tmp_path, content, expected):
    (tmp_path / "namespace").write_text(content)
    assert find_namespace("", service_account=tmp_path) == expected
    assert find_namespace("given", service_account=tmp_path) == "given"
