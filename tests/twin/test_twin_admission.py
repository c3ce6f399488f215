"""Pods at the twin: choice of devices, calls, answers, refusals, crashes (kubelet contract A.5 to A.9, A.12)."""

from __future__ import annotations

import pytest

from nvdp.simulate.kubelet import AdmissionError, HoldPoint, Kubelet, KubeletCrashedError
from tests.twin.reference_plugin import RESOURCE, ReferencePlugin, device, devices

ONE = {"main": {RESOURCE: 1}}
TWO = {"main": {RESOURCE: 2}}


def serve(kubelet: Kubelet, plugin: ReferencePlugin) -> None:
    plugin.register()
    kubelet.wait_until(lambda: kubelet.capacity(plugin.resource) == len(plugin.listed))


def test_a_pod_gets_devices_and_the_answer_is_kept(root):
    with Kubelet(root) as kubelet, ReferencePlugin(kubelet.directory) as plugin:
        serve(kubelet, plugin)
        pod = kubelet.admit("team-a/train", TWO)
        assert (pod.namespace, pod.name, pod.phase) == ("team-a", "train", "Running")
        assert len(pod.ids(RESOURCE)) == 2
        assert pod.response(RESOURCE).envs["DEVICES"] == ",".join(sorted(pod.ids(RESOURCE)))
        assert [call.method for call in kubelet.calls] == ["Allocate"]
        kubelet.restart_container(pod, "main")
        assert len(kubelet.calls) == 1


def test_ids_come_in_no_order(root):
    with Kubelet(root) as kubelet, ReferencePlugin(kubelet.directory, listed=devices(60)) as plugin:
        serve(kubelet, plugin)
        kubelet.admit("pod", {"main": {RESOURCE: 30}})
        (call,) = kubelet.calls
        assert list(call.ids) != sorted(call.ids)


def test_a_device_is_given_once_until_its_pod_is_gone(root):
    with Kubelet(root) as kubelet, ReferencePlugin(kubelet.directory, listed=devices(3)) as plugin:
        serve(kubelet, plugin)
        first, second = kubelet.admit("a", TWO), kubelet.admit("b", ONE)
        assert not first.ids(RESOURCE) & second.ids(RESOURCE)
        with pytest.raises(
            AdmissionError,
            match=r"Allocate failed due to requested number of devices unavailable for nvidia\.com/gpu\. "
            r"Requested: 1, Available: 0, which is unexpected",
        ):
            kubelet.admit("c", ONE)
        kubelet.delete(first)
        kubelet.finish(second)
        assert len(kubelet.admit("d", {"main": {RESOURCE: 3}}).ids(RESOURCE)) == 3


def test_the_text_of_a_refusal_reaches_the_user_and_the_devices_are_free_again(root):
    with Kubelet(root) as kubelet, ReferencePlugin(kubelet.directory) as plugin:
        serve(kubelet, plugin)
        plugin.allocate_error = "2 asked, 1 allowed"
        with pytest.raises(AdmissionError) as error:
            kubelet.admit("greedy", TWO)
        assert str(error.value) == (
            "Allocate failed due to rpc error: code = InvalidArgument desc = 2 asked, 1 allowed, which is unexpected"
        )
        assert error.value.reason == "UnexpectedAdmissionError"
        plugin.allocate_error = ""
        assert len(kubelet.admit("modest", {"main": {RESOURCE: 4}}).ids(RESOURCE)) == 4


def test_an_answer_without_a_container_is_refused(root):
    with Kubelet(root) as kubelet, ReferencePlugin(kubelet.directory) as plugin:
        serve(kubelet, plugin)
        plugin.no_containers = True
        with pytest.raises(AdmissionError, match="no containers return in allocation response"):
            kubelet.admit("pod", ONE)


def test_a_resource_that_never_registered_is_not_missed(root):
    """A pod past the scheduler is admitted without any device."""
    with Kubelet(root) as kubelet:
        pod = kubelet.admit("pod", {"main": {"nvidia.com/unheard": 1}})
        assert (pod.phase, pod.ids("nvidia.com/unheard")) == ("Running", frozenset())


def test_the_plugin_is_asked_which_devices_it_prefers_and_heard(root):
    with Kubelet(root) as kubelet, ReferencePlugin(kubelet.directory, preferred=True) as plugin:
        serve(kubelet, plugin)
        plugin.prefer_answer = ["dev-2", "dev-0"]
        assert kubelet.admit("pod", TWO).ids(RESOURCE) == {"dev-0", "dev-2"}
        prefer, allocate = kubelet.calls
        assert (prefer.method, allocate.method) == ("GetPreferredAllocation", "Allocate")
        assert (set(prefer.ids), prefer.must_include, prefer.size) == ({f"dev-{n}" for n in range(4)}, (), 2)
        # Asked again although nothing is left to choose.
        plugin.prefer_answer = []
        assert kubelet.admit("rest", TWO).ids(RESOURCE) == {"dev-1", "dev-3"}
        assert [call.method for call in kubelet.calls].count("GetPreferredAllocation") == 2


@pytest.mark.parametrize("answer", [["dev-1"], ["nonsense"], [f"dev-{n}" for n in range(4)]])
def test_a_preference_of_the_wrong_size_is_completed_or_cut(root, answer):
    with Kubelet(root) as kubelet, ReferencePlugin(kubelet.directory, preferred=True) as plugin:
        serve(kubelet, plugin)
        plugin.prefer_answer = answer
        given = kubelet.admit("pod", TWO).ids(RESOURCE)
        assert len(given) == 2
        assert answer != ["dev-1"] or "dev-1" in given


def test_an_error_instead_of_a_preference_rejects_the_pod(root):
    with Kubelet(root) as kubelet, ReferencePlugin(kubelet.directory, preferred=True) as plugin:
        serve(kubelet, plugin)
        plugin.prefer_error = "boom"
        with pytest.raises(
            AdmissionError, match="GetPreferredAllocation rpc failed with err: rpc error: code = Intern"
        ):
            kubelet.admit("pod", ONE)


def test_an_init_containers_devices_are_used_again_by_the_app(root):
    with Kubelet(root) as kubelet, ReferencePlugin(kubelet.directory, preferred=True) as plugin:
        serve(kubelet, plugin)
        pod = kubelet.admit("pod", {"main": {RESOURCE: 3}}, init_containers={"prepare": {RESOURCE: 2}})
        prepared = set(pod.allocations["prepare", RESOURCE].ids)
        assert prepared <= set(pod.allocations["main", RESOURCE].ids)
        assert len(pod.ids(RESOURCE)) == 3
        asked = [call for call in kubelet.calls if call.method == "GetPreferredAllocation"]
        assert (set(asked[1].must_include), asked[1].size) == (prepared, 3)
        assert [call.method for call in kubelet.calls].count("Allocate") == 2


def test_two_containers_of_a_pod_do_not_share(root):
    with Kubelet(root) as kubelet, ReferencePlugin(kubelet.directory) as plugin:
        serve(kubelet, plugin)
        pod = kubelet.admit("pod", {"a": {RESOURCE: 2}, "b": {RESOURCE: 2}})
        assert len(pod.ids(RESOURCE)) == 4


def test_pre_start_is_called_before_each_start_if_asked_for(root):
    with Kubelet(root) as kubelet, ReferencePlugin(kubelet.directory, pre_start=True) as plugin:
        serve(kubelet, plugin)
        pod = kubelet.admit("pod", TWO)
        kubelet.restart_container(pod, "main")
        assert [call.method for call in kubelet.calls] == ["Allocate", "PreStartContainer", "PreStartContainer"]
        assert set(kubelet.calls[-1].ids) == pod.ids(RESOURCE)


def test_a_start_that_the_plugin_refuses_leaves_the_pod_waiting_with_its_devices_until_one_succeeds(root):
    with Kubelet(root) as kubelet, ReferencePlugin(kubelet.directory, pre_start=True) as plugin:
        serve(kubelet, plugin)
        plugin.pre_start_error = "not idle"
        pod, waiting = kubelet.submit("pod", TWO)
        with pytest.raises(AdmissionError, match="not idle") as caught:
            waiting.result(5)
        assert (caught.value.reason, pod.phase) == ("CreateContainerConfigError", "Pending")
        assert len(pod.ids(RESOURCE)) == 2
        with pytest.raises(AdmissionError, match="not idle"):
            kubelet.restart_container(pod, "main")
        plugin.pre_start_error = ""
        kubelet.restart_container(pod, "main")
        assert (pod.phase, pod.error) == ("Running", None)


def test_pods_are_admitted_one_after_the_other_behind_a_plugin_that_takes_its_time(root):
    with Kubelet(root) as kubelet, ReferencePlugin(kubelet.directory) as plugin:
        serve(kubelet, plugin)
        with kubelet.faults.hold_allocate(HoldPoint.REQUEST) as hold:
            first, first_done = kubelet.submit("first", ONE)
            second, second_done = kubelet.submit("second", ONE)
            assert hold.reached.wait(5)
            assert (first.phase, second.phase, kubelet.calls) == ("Pending", "Pending", ())
        first_done.result(5)
        second_done.result(5)
        assert [call.ids for call in kubelet.calls] == [tuple(first.ids(RESOURCE)), tuple(second.ids(RESOURCE))]


@pytest.mark.parametrize("point", list(HoldPoint))
def test_an_id_that_leaves_during_its_allocate_crashes_1_36(root, point):
    with Kubelet(root, version="1.36") as kubelet, ReferencePlugin(kubelet.directory, listed=devices(1)) as plugin:
        serve(kubelet, plugin)
        with kubelet.faults.hold_allocate(point) as hold:
            _, done = kubelet.submit("pod", ONE)
            assert hold.reached.wait(5)
            plugin.update([device("other")])
            kubelet.wait_until(lambda: "other" in kubelet.devices(RESOURCE))
        with pytest.raises(KubeletCrashedError, match=r"dev-0 left the list of nvidia\.com/gpu while its Allocate"):
            done.result(5)
        with pytest.raises(KubeletCrashedError):
            kubelet.assert_alive()
        assert "dev-0" in kubelet.wait_for_crash()
        plugin.wait_stream_ended()
        assert not kubelet.running
        kubelet.start()
        kubelet.assert_alive()


@pytest.mark.parametrize("version", ["1.33", "1.37"])
def test_other_versions_only_lose_the_topology(root, version):
    with Kubelet(root, version=version) as kubelet, ReferencePlugin(kubelet.directory, listed=devices(1)) as plugin:
        serve(kubelet, plugin)
        with kubelet.faults.hold_allocate() as hold:
            pod, done = kubelet.submit("pod", ONE)
            assert hold.reached.wait(5)
            plugin.update([device("other")])
            kubelet.wait_until(lambda: "other" in kubelet.devices(RESOURCE))
        done.result(5)
        assert pod.ids(RESOURCE) == {"dev-0"}


def test_an_id_that_turns_unhealthy_during_its_allocate_harms_nobody(root):
    with Kubelet(root) as kubelet, ReferencePlugin(kubelet.directory, listed=devices(1)) as plugin:
        serve(kubelet, plugin)
        with kubelet.faults.hold_allocate() as hold:
            pod, done = kubelet.submit("pod", ONE)
            assert hold.reached.wait(5)
            plugin.update([device("dev-0", "Unhealthy")])
            kubelet.wait_until(lambda: kubelet.allocatable(RESOURCE) == 0)
        done.result(5)
        assert pod.phase == "Running"


def test_a_refusal_of_the_id_that_left_saves_the_kubelet(root):
    with Kubelet(root) as kubelet, ReferencePlugin(kubelet.directory, listed=devices(1)) as plugin:
        serve(kubelet, plugin)
        with kubelet.faults.hold_allocate(HoldPoint.REQUEST) as hold:
            pod, done = kubelet.submit("pod", ONE)
            assert hold.reached.wait(5)
            plugin.allocate_error = "dev-0 is not on offer any more"
            plugin.update([])
            kubelet.wait_until(lambda: kubelet.capacity(RESOURCE) == 0)
        with pytest.raises(AdmissionError, match="not on offer any more"):
            done.result(5)
        assert pod.phase == "Failed"


def drop_during_allocate(kubelet: Kubelet) -> None:
    with kubelet, ReferencePlugin(kubelet.directory, listed=devices(1)) as plugin:
        serve(kubelet, plugin)
        with kubelet.faults.hold_allocate() as hold:
            kubelet.submit("pod", ONE)
            assert hold.reached.wait(5)
            plugin.update([])
            kubelet.wait_until(lambda: kubelet.capacity(RESOURCE) == 0)
        plugin.wait_stream_ended()


def test_leaving_the_context_of_a_crashed_kubelet_fails_the_test(root):
    with pytest.raises(KubeletCrashedError):
        drop_during_allocate(Kubelet(root))


def test_a_stop_during_an_admission_leaves_the_pod_to_the_next_life(root):
    with Kubelet(root) as kubelet, ReferencePlugin(kubelet.directory) as plugin:
        serve(kubelet, plugin)
        with kubelet.faults.hold_allocate(HoldPoint.REQUEST) as hold:
            pod, _ = kubelet.submit("pod", ONE)
            assert hold.reached.wait(5)
            kubelet.stop()
        assert pod.phase == "Pending"
        kubelet.start()
        plugin.stop()
        with ReferencePlugin(kubelet.directory, name="again.sock") as again:
            again.register()
            kubelet.wait_until(lambda: pod.phase == "Running")
            assert len(pod.ids(RESOURCE)) == 1
