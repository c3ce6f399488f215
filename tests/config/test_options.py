"""Flags and environment variables: names, values, precedence, and what is said about one that does not parse."""

from __future__ import annotations

from pathlib import Path

import pytest

from nvdp.config.options import list_options, parse_options
from nvdp.config.schema import DeviceDiscoveryStrategy, MigStrategy
from nvdp.errors import UsageError
from nvdp.model.duration import build_duration
from nvdp.model.listing import DeviceIDStrategy, DeviceListStrategy, SharedPolicy
from tests.config.reading import errors_of, read, warnings_of

NVIDIA = {  # flag: aliases, environment, key, from the table of the plugin that people come from
    "mig-strategy": ([], ["MIG_STRATEGY"], "flags.migStrategy"),
    "fail-on-init-error": ([], ["FAIL_ON_INIT_ERROR"], "flags.failOnInitError"),
    "driver-root": (["nvidia-driver-root"], ["NVIDIA_DRIVER_ROOT"], "flags.nvidiaDriverRoot"),
    "dev-root": (["nvidia-dev-root"], ["NVIDIA_DEV_ROOT"], "flags.nvidiaDevRoot"),
    "pass-device-specs": ([], ["PASS_DEVICE_SPECS"], "flags.plugin.passDeviceSpecs"),
    "device-list-strategy": ([], ["DEVICE_LIST_STRATEGY"], "flags.plugin.deviceListStrategy"),
    "device-id-strategy": ([], ["DEVICE_ID_STRATEGY"], "flags.plugin.deviceIDStrategy"),
    "gdrcopy-enabled": ([], ["GDRCOPY_ENABLED"], "flags.gdrcopyEnabled"),
    "gds-enabled": ([], ["GDS_ENABLED"], "flags.gdsEnabled"),
    "mofed-enabled": ([], ["MOFED_ENABLED"], "flags.mofedEnabled"),
    "cdi-annotation-prefix": ([], ["CDI_ANNOTATION_PREFIX"], "flags.plugin.cdiAnnotationPrefix"),
    "nvidia-cdi-hook-path": (
        ["nvidia-ctk-path"],
        ["NVIDIA_CDI_HOOK_PATH", "NVIDIA_CTK_PATH"],
        "flags.plugin.nvidiaCTKPath",
    ),
    "driver-root-ctr-path": (
        ["container-driver-root"],
        ["DRIVER_ROOT_CTR_PATH", "CONTAINER_DRIVER_ROOT"],
        "flags.plugin.containerDriverRoot",
    ),
    "mps-root": ([], ["MPS_ROOT"], "flags.mpsRoot"),
    "shared-devices-allocation-policy": (
        [],
        ["SHARED_DEVICES_ALLOCATION_POLICY"],
        "flags.plugin.sharedDevicesAllocationPolicy",
    ),
    "device-discovery-strategy": ([], ["DEVICE_DISCOVERY_STRATEGY"], "flags.deviceDiscoveryStrategy"),
    "imex-channel-ids": ([], ["IMEX_CHANNEL_IDS"], "imex.channelIDs"),
    "imex-required": ([], ["IMEX_REQUIRED"], "imex.required"),
    "kubelet-socket": ([], ["KUBELET_SOCKET"], ""),
    "config-file": ([], ["CONFIG_FILE"], ""),
    "cdi-feature-flags": ([], ["CDI_FEATURE_FLAGS"], ""),
    "cdi-disable-hooks": ([], ["CDI_DISABLE_HOOKS"], ""),
    "node-name": ([], ["NODE_NAME"], ""),
    "kubeconfig": ([], ["KUBECONFIG"], ""),
    "namespace": ([], ["NAMESPACE"], ""),
    "pod-name": ([], ["POD_NAME"], ""),
    "node-label": ([], ["NODE_LABEL"], ""),
    "config-dir": ([], ["CONFIG_FILE_SRCDIR"], ""),
    "default-config": ([], ["DEFAULT_CONFIG"], ""),
    "fallback-strategies": ([], ["FALLBACK_STRATEGIES"], ""),
}
OURS = {
    "metrics-port": "NVDP_METRICS_PORT",
    "kubelet-root": "NVDP_KUBELET_ROOT",
    "pod-resources-socket": "NVDP_POD_RESOURCES_SOCKET",
    "state-dir": "NVDP_STATE_DIR",
    "run-dir": "NVDP_RUN_DIR",
    "cdi-dir": "NVDP_CDI_DIR",
    "host-dev": "NVDP_HOST_DEV",
    "host-etc": "NVDP_HOST_ETC",
    "mps-dir": "NVDP_MPS_DIR",
    "mps-control": "NVDP_MPS_CONTROL",
    "mps-shm-size": "NVDP_MPS_SHM_SIZE",
    "log-format": "NVDP_LOG_FORMAT",
    "log-level": "NVDP_LOG_LEVEL",
    "log-allocations": "NVDP_LOG_ALLOCATIONS",
    "config-map": "NVDP_CONFIG_MAP",
    "write-labels": "NVDP_WRITE_LABELS",
    "events": "NVDP_EVENTS",
    "node-condition": "NVDP_NODE_CONDITION",
    "startup-taint": "NVDP_STARTUP_TAINT",
    "apply-jitter": "NVDP_APPLY_JITTER",
    "simulated-node": "NVDP_SIMULATED_NODE",
}


def _given(flags: dict[str, object] | None = None, environment: dict[str, str] | None = None):
    options, overrides = parse_options(flags or {}, environment or {})
    return options, read("", overrides)


def test_every_flag_of_nvidia_has_its_names_and_its_key_and_there_are_no_others_but_our_own():
    found = {
        option.flag: (
            list(option.key.setting.flags[1:]),
            list(option.key.setting.environment),
            option.path,
        )
        for option in list_options()
    }
    assert found == NVIDIA | {flag: ([], [variable], "") for flag, variable in OURS.items()}


def test_without_flags_and_environment_everything_is_nvidias_default():
    options, config = _given()
    flags, plugin = config.flags, config.flags.plugin
    assert (flags.mig_strategy, flags.fail_on_init_error, flags.mps_root) == (MigStrategy.NONE, True, "")
    assert (flags.nvidia_driver_root, flags.nvidia_dev_root) == ("/", "/")
    assert (flags.gdrcopy_enabled, flags.gds_enabled, flags.mofed_enabled) == (False, False, False)
    assert flags.device_discovery_strategy is DeviceDiscoveryStrategy.AUTO
    assert plugin.device_list_strategy == (DeviceListStrategy.ENVVAR,)
    assert (plugin.pass_device_specs, plugin.device_id_strategy) == (False, DeviceIDStrategy.UUID)
    assert (plugin.cdi_annotation_prefix, plugin.nvidia_ctk_path) == ("cdi.k8s.io/", "/usr/bin/nvidia-ctk")
    assert plugin.container_driver_root == "/driver-root"
    assert config.allocation.shared_policy is SharedPolicy.DISTRIBUTED
    assert (config.imex.channel_ids, config.imex.required) == ((), False)
    assert str(options.kubelet_socket) == "/var/lib/kubelet/device-plugins/kubelet.sock"
    assert str(options.pod_resources_socket) == "/var/lib/kubelet/pod-resources/kubelet.sock"
    assert options.config_file is None
    assert (str(options.state_dir), str(options.run_dir), options.metrics_port) == ("/var/lib/nvdp", "/run/nvdp", 9402)
    assert (options.log_format, options.log_level.value, options.log_allocations) == (None, "info", True)
    assert (options.node_condition, options.apply_jitter) == ("", build_duration(seconds=0))


@pytest.mark.parametrize(
    ("flag", "environment", "file", "expected", "origin"),
    [
        ("mixed", "single", "none", MigStrategy.MIXED, "flag --mig-strategy"),
        (None, "single", "none", MigStrategy.SINGLE, "environment MIG_STRATEGY"),
        ("", "", "single", MigStrategy.SINGLE, "file line 2"),
        (None, "", None, MigStrategy.NONE, "default"),
        (None, None, "null", MigStrategy.NONE, "default"),
        ("none", None, "mixed", MigStrategy.NONE, "flag --mig-strategy"),
    ],
)
def test_a_flag_wins_over_the_environment_and_that_over_the_file(
    flag: str | None, environment: str | None, file: str | None, expected: MigStrategy, origin: str
):
    variables = {} if environment is None else {"MIG_STRATEGY": environment}
    _, overrides = parse_options({"mig-strategy": flag}, variables)
    config = read("" if file is None else f"flags:\n  migStrategy: {file}\n", overrides)
    assert config.flags.mig_strategy is expected
    assert str(config.origins["flags.migStrategy"]) == origin


def test_a_flag_wins_although_the_file_has_no_such_block():
    assert _given({"imex-channel-ids": ("0",)})[1].imex.channel_ids == (0,)


def test_a_mistake_in_the_file_is_one_although_a_flag_wins():
    _, overrides = parse_options({"mig-strategy": "none"}, {})
    assert errors_of("flags: {migStrategy: nonsense}", overrides)


def test_the_first_variable_that_is_set_and_not_empty_counts():
    both = {"NVIDIA_CDI_HOOK_PATH": "/a", "NVIDIA_CTK_PATH": "/b"}
    assert _given(environment=both)[1].flags.plugin.nvidia_ctk_path == "/a"
    assert _given(environment=both | {"NVIDIA_CDI_HOOK_PATH": ""})[1].flags.plugin.nvidia_ctk_path == "/b"


@pytest.mark.parametrize("text", ["1", "t", "T", "true", "True", "TRUE"])
def test_a_true_boolean_is_written_as_in_go(text: str):
    assert _given(environment={"PASS_DEVICE_SPECS": text})[1].flags.plugin.pass_device_specs


@pytest.mark.parametrize("text", ["0", "f", "F", "false", "False", "FALSE"])
def test_a_false_boolean_is_written_as_in_go(text: str):
    assert not _given(environment={"FAIL_ON_INIT_ERROR": text})[1].flags.fail_on_init_error


@pytest.mark.parametrize("given", [("envvar,cdi-cri",), ("envvar", "cdi-cri"), (" envvar , cdi-cri,envvar ",)])
def test_a_list_is_separated_by_commas_or_repeated(given: tuple[str, ...]):
    strategies = _given({"device-list-strategy": given})[1].flags.plugin.device_list_strategy
    assert strategies == (DeviceListStrategy.ENVVAR, DeviceListStrategy.CDI_CRI)


@pytest.mark.parametrize(
    ("flags", "environment", "said"),
    [
        ({"mig-strategy": "some"}, {}, 'flag --mig-strategy: "some" is not one of none, single, mixed'),
        ({}, {"PASS_DEVICE_SPECS": "yes"}, 'environment PASS_DEVICE_SPECS: "yes" is not true or false'),
        ({}, {"NVDP_METRICS_PORT": "http"}, 'environment NVDP_METRICS_PORT: "http" is not a number'),
        ({"metrics-port": "70000"}, {}, "flag --metrics-port: 70000 is too large; 65535 is the most"),
        ({"metrics-port": "-1"}, {}, 'flag --metrics-port: "-1" is not a number'),
        ({"imex-channel-ids": ("0", "2")}, {}, "flag --imex-channel-ids: 2 is too large; [] and [0] are possible"),
        (
            {"device-list-strategy": ("cdi",)},
            {},
            'flag --device-list-strategy: "cdi" is not one of envvar, volume-mounts',
        ),
        (
            {"cdi-annotation-prefix": "cdi.k8s.io"},
            {},
            'flag --cdi-annotation-prefix: "cdi.k8s.io" is not a domain and a slash; write one like cdi.k8s.io/',
        ),
        (
            {},
            {"NVIDIA_CTK_PATH": "ctk"},
            'environment NVIDIA_CTK_PATH: "ctk" is not the absolute path of a file; write one like /usr/bin/nvidia-ctk',
        ),
        ({"apply-jitter": "soon"}, {}, 'flag --apply-jitter: "soon" is not a duration'),
        (
            {},
            {"SHARED_DEVICES_ALLOCATION_POLICY": "spread"},
            (
                "environment SHARED_DEVICES_ALLOCATION_POLICY: spread is not known to NVIDIA's plugin; "
                "set allocation.sharedPolicy: spread"
            ),
        ),
        ({"log-level": "loud"}, {}, 'flag --log-level: "loud" is not one of debug, info, warning, error'),
    ],
)
def test_a_value_that_does_not_parse_names_its_flag_or_variable(
    flags: dict[str, object], environment: dict[str, str], said: str
):
    with pytest.raises(UsageError) as refused:
        parse_options(flags, environment)
    assert str(refused.value).startswith(said)
    assert "\n" not in str(refused.value)


def test_the_kubelet_root_moves_the_socket_directory_and_pod_resources():
    options, _ = _given({"kubelet-root": "/k"})
    assert options.kubelet_socket == Path("/k/device-plugins/kubelet.sock")
    assert options.pod_resources_socket == Path("/k/pod-resources/kubelet.sock")
    assert str(options.origins["kubelet-socket"]) == "follows --kubelet-root"


def test_pod_resources_follows_the_kubelet_socket():
    options, _ = _given({"kubelet-root": "/k"}, {"KUBELET_SOCKET": "/other/plugins/kubelet.sock"})
    assert options.kubelet_socket == Path("/other/plugins/kubelet.sock")
    assert options.pod_resources_socket == Path("/other/pod-resources/kubelet.sock")
    assert str(options.origins["pod-resources-socket"]) == "follows --kubelet-socket"


def test_pod_resources_stays_where_it_is_given():
    options, _ = _given({"kubelet-root": "/k", "pod-resources-socket": "/p.sock"})
    assert options.pod_resources_socket == Path("/p.sock")


def test_the_dev_root_is_the_driver_root_unless_given():
    assert _given(environment={"NVIDIA_DRIVER_ROOT": "/driver"})[1].flags.nvidia_dev_root == "/driver"
    config = read("flags: {nvidiaDriverRoot: /driver, nvidiaDevRoot: /dev-root}")
    assert config.flags.nvidia_dev_root == "/dev-root"
    assert str(read("flags: {nvidiaDriverRoot: /d}").origins["flags.nvidiaDevRoot"]) == "follows nvidiaDriverRoot"


def test_a_driver_root_without_a_name_is_the_root_and_not_where_the_process_stands():
    assert read("flags: {plugin: {containerDriverRoot: ''}}").flags.plugin.container_driver_root == "/"


@pytest.mark.parametrize(
    ("file", "policy"),
    [
        ("flags: {plugin: {sharedDevicesAllocationPolicy: packed}}", SharedPolicy.PACKED),
        ("allocation: {sharedPolicy: spread}", SharedPolicy.SPREAD),
        (
            "flags: {plugin: {sharedDevicesAllocationPolicy: packed}}\nallocation: {sharedPolicy: packed}\n",
            SharedPolicy.PACKED,
        ),
    ],
)
def test_the_policy_may_be_given_under_either_key(file: str, policy: SharedPolicy):
    assert read(file).allocation.shared_policy is policy


def test_the_files_own_policy_wins_over_a_variable_with_a_warning():
    _, overrides = parse_options({}, {"SHARED_DEVICES_ALLOCATION_POLICY": "distributed"})
    config = read("allocation: {sharedPolicy: packed}", overrides)
    assert config.allocation.shared_policy is SharedPolicy.PACKED
    assert [warning.message for warning in config.warnings] == [
        "packed wins over distributed of environment SHARED_DEVICES_ALLOCATION_POLICY"
    ]


def test_cdi_annotations_beside_cdi_cri_is_accepted_with_a_warning():
    assert warnings_of("flags: {plugin: {deviceListStrategy: [cdi-annotations, cdi-cri]}}") == [
        (
            "f:1:38: warning: flags.plugin.deviceListStrategy: cdi-annotations and cdi-cri name the same devices; "
            "only cdi-cri is sent"
        )
    ]
