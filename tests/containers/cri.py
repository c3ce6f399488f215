"""Calls of the container runtime interface, made as the kubelet makes them: sandboxes, containers, commands in them."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from grpc_tools import protoc

from tests.containers.image import IMAGE

_SOURCE = Path(__file__).with_name("cri.proto")
_LIMIT_S = 30
_NODE = 2  # the namespace mode of the host's network: there is no CNI here
LIST_DEVICES = "busybox stat -c '%n %t:%T' /dev/nvidia* /dev/nvidia-caps/* 2>/dev/null; true"
# Method of RuntimeService: its request and answer.
_CALLS = {
    "RunPodSandbox": ("RunPodSandboxRequest", "RunPodSandboxResponse"),
    "CreateContainer": ("CreateContainerRequest", "CreateContainerResponse"),
    "StartContainer": ("ContainerRequest", "Empty"),
    "StopContainer": ("ContainerRequest", "Empty"),
    "RemoveContainer": ("ContainerRequest", "Empty"),
    "ExecSync": ("ExecSyncRequest", "ExecSyncResponse"),
}


class Injection(NamedTuple):
    """What Allocate answered for one container, as the kubelet passes it on. ``devices`` and ``mounts`` map
    container paths to host paths.
    """

    cdi_devices: tuple[str, ...] = ()
    envs: Mapping[str, str] = {}
    mounts: Mapping[str, str] = {}
    devices: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}


def merge(*answers: Any) -> Injection:
    """The ``ContainerAllocateResponse`` of each resource of one container, put together as the kubelet does it."""
    names = dict.fromkeys(device.name for answer in answers for device in answer.cdi_devices)
    return Injection(
        cdi_devices=tuple(names),
        envs={key: value for answer in answers for key, value in answer.envs.items()},
        mounts={mount.container_path: mount.host_path for answer in answers for mount in answer.mounts},
        devices={device.container_path: device.host_path for answer in answers for device in answer.devices},
        annotations={key: value for answer in answers for key, value in answer.annotations.items()},
    )


class Runtime:
    """A client of the runtime on ``socket``. Close it. Refusals come as grpc.RpcError with the runtime's text."""

    def __init__(self, socket: Path) -> None:
        self._channel = grpc.insecure_channel(f"unix:{socket}", options=[("grpc.use_local_subchannel_pool", 1)])
        self._messages = _load_messages()
        self._numbers = itertools.count()

    def close(self) -> None:
        self._channel.close()

    def has_image(self) -> bool:
        """Whether the image service has our image and knows it."""
        asked = self._messages["ImageStatusRequest"](image={"image": IMAGE})
        try:
            answer = self._call("ImageService", "ImageStatus", asked, "ImageStatusResponse")
        except grpc.RpcError:
            return False
        return answer.HasField("image")

    def start(self, injection: Injection, *, image_env: Mapping[str, str] = {}) -> Container:
        """A running container in a sandbox of its own. ``image_env`` is what its image would set."""
        name = f"c{next(self._numbers)}"
        sandbox = {
            "metadata": {"name": name, "uid": name, "namespace": "default"},
            "linux": {"security_context": {"namespace_options": {"network": _NODE}}},
        }
        sandbox_id = self.ask("RunPodSandbox", config=sandbox).pod_sandbox_id
        config = {
            "metadata": {"name": name},
            "image": {"image": IMAGE},
            "envs": [{"key": key, "value": value} for key, value in {**image_env, **injection.envs}.items()],
            "mounts": [{"container_path": at, "host_path": path} for at, path in injection.mounts.items()],
            "devices": [
                {"container_path": at, "host_path": path, "permissions": "rw"} for at, path in injection.devices.items()
            ],
            "annotations": dict(injection.annotations),
            "linux": {"security_context": {"namespace_options": {"network": _NODE}}},
            "CDI_devices": [{"name": device} for device in injection.cdi_devices],
        }
        created = self.ask("CreateContainer", pod_sandbox_id=sandbox_id, config=config, sandbox_config=sandbox)
        self.ask("StartContainer", container_id=created.container_id)
        return Container(self, created.container_id)

    def ask(self, method: str, **fields: Any) -> Any:
        request, answer = _CALLS[method]
        return self._call("RuntimeService", method, self._messages[request](**fields), answer)

    def _call(self, service: str, method: str, request: Any, answer: str) -> Any:
        call = self._channel.unary_unary(
            f"/runtime.v1.{service}/{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=self._messages[answer].FromString,
        )
        return call(request, timeout=_LIMIT_S)


class Container:
    """One that runs, in which commands can be run."""

    def __init__(self, runtime: Runtime, container_id: str) -> None:
        self._runtime = runtime
        self.id = container_id

    def run(self, *command: str) -> str:
        """What the command printed; AssertionError with its complaint if it failed."""
        done = self._runtime.ask("ExecSync", container_id=self.id, cmd=command, timeout=_LIMIT_S)
        assert done.exit_code == 0, f"{command}: {done.stderr.decode()}"
        return str(done.stdout.decode())

    def environment(self) -> dict[str, str]:
        """The variables that its first process was started with; of one that is given twice, what a shell sees."""
        return dict(line.split("=", 1) for line in self.run("env").splitlines())

    def devices(self) -> dict[str, str]:
        """The NVIDIA device nodes it has, by path, with their numbers."""
        return parse_devices(self.run("sh", "-c", LIST_DEVICES))

    def stop(self) -> None:
        self._runtime.ask("StopContainer", container_id=self.id)
        self._runtime.ask("RemoveContainer", container_id=self.id)


def parse_devices(listed: str) -> dict[str, str]:
    """What LIST_DEVICES printed: paths, and numbers in hexadecimal."""
    return dict(line.split(" ") for line in listed.splitlines() if not line.endswith(" 0:0"))


def _load_messages() -> dict[str, Any]:
    """The classes of the messages of cri.proto, by name."""
    with tempfile.TemporaryDirectory() as directory:
        compiled = Path(directory, "cri.bin")
        arguments = ["protoc", f"-I{_SOURCE.parent}", f"--descriptor_set_out={compiled}", _SOURCE.name]
        assert protoc.main(arguments) == 0
        files = descriptor_pb2.FileDescriptorSet.FromString(compiled.read_bytes())
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file)
    found = message_factory.GetMessageClassesForFiles([_SOURCE.name], pool)
    return {name.rpartition(".")[2]: message for name, message in found.items()}
