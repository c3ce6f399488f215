"""Where drivers put what containers need: the places of all the systems that are known, as tables.

Names and places are those of NVIDIA's driver packages and installer for Linux; what of it a container gets follows
NVIDIA's plugin (its CDI specs), with the places of Talos and Container-Optimized OS added.
"""

from __future__ import annotations

from typing import Final, NamedTuple

# The first name of a directory counts where another is a link to it: /usr before what newer systems link there.
LIBRARY_DIRS: Final = (
    "/usr/lib64",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu/nvidia/current",
    "/usr/lib/aarch64-linux-gnu/nvidia/current",
    "/lib64",  # under the directory into which Container-Optimized OS installs, too
    "/lib/x86_64-linux-gnu",
    "/lib/aarch64-linux-gnu",
    "/lib/x86_64-linux-gnu/nvidia/current",
    "/lib/aarch64-linux-gnu/nvidia/current",
    "/opt/nvidia/lib64",
    "/usr/local/glibc/usr/lib",  # Talos, whose own libraries are musl's
    "/usr/local/glibc/lib",
    "/usr/local/lib",
    "/usr/lib",
    "/lib",
)
# They hold libraries for programs of another word size, under the same names.
OTHER_WORD_SIZES: Final = frozenset({"i386-linux-gnu", "i686-linux-gnu", "arm-linux-gnueabihf", "lib32", "libx32"})

BINARY_DIRS: Final = (
    "/usr/bin",
    "/bin",
    "/usr/sbin",
    "/sbin",
    "/usr/local/bin",
    "/usr/local/sbin",
    "/opt/bin",
    "/opt/nvidia/bin",
)
BINARIES: Final = (
    "nvidia-smi",
    "nvidia-debugdump",
    "nvidia-persistenced",
    "nvidia-cuda-mps-control",
    "nvidia-cuda-mps-server",
    "nvidia-imex",
    "nvidia-imex-ctl",
)

# Below them is nvidia/<version>/gsp*.bin. The kernel's own order comes before: see its documentation of firmware.
FIRMWARE_DIRS: Final = ("/lib/firmware", "/usr/lib/firmware", "/firmware")

# Each of the first place in which it is. The last is what all processes of a container that uses MPS share.
SOCKETS: Final = (
    ("/run/nvidia-persistenced/socket", "/var/run/nvidia-persistenced/socket"),
    ("/run/nvidia-fabricmanager/socket", "/var/run/nvidia-fabricmanager/socket"),
    ("/tmp/nvidia-mps",),  # noqa: S108 - the driver's own choice
)


class ConfigPlace(NamedTuple):
    """A file, the directories that may have it, and where a container gets it: None for where it was found."""

    name: str
    directories: tuple[str, ...]
    container_directory: str | None = None


_SHARED: Final = ("/etc", "/usr/local/share", "/usr/share")
# Container-Optimized OS has Vulkan's files right under the driver root; containers look for them in /etc first.
_VULKAN: Final = (*_SHARED, "")
CONFIGS: Final = (
    ConfigPlace("OpenCL/vendors/nvidia.icd", _SHARED),
    ConfigPlace("X11/xorg.conf.d/10-nvidia.conf", _SHARED),
    ConfigPlace("X11/xorg.conf.d/nvidia-drm-outputclass.conf", _SHARED),
    ConfigPlace("egl/egl_external_platform.d/09_nvidia_wayland2.json", _SHARED),
    ConfigPlace("egl/egl_external_platform.d/10_nvidia_wayland.json", _SHARED),
    ConfigPlace("egl/egl_external_platform.d/15_nvidia_gbm.json", _SHARED),
    ConfigPlace("glvnd/egl_vendor.d/10_nvidia.json", _SHARED),
    ConfigPlace("nvidia/nvoptix.bin", _SHARED),
    ConfigPlace("vulkan/icd.d/nvidia_icd.json", _VULKAN, "/etc"),
    ConfigPlace("vulkan/icd.d/nvidia_icd.x86_64.json", _VULKAN, "/etc"),
    ConfigPlace("vulkan/icd.d/nvidia_icd.aarch64.json", _VULKAN, "/etc"),
    ConfigPlace("vulkan/icd.d/nvidia_layers.json", _VULKAN, "/etc"),
    ConfigPlace("vulkan/implicit_layer.d/nvidia_layers.json", _VULKAN, "/etc"),
)

# The X server's modules: below the directory that has libcuda, or in the server's own.
X_MODULE_DIRS: Final = (
    "nvidia/xorg",
    "xorg/modules/drivers",
    "xorg/modules/extensions",
    "xorg/modules/updates/drivers",
    "xorg/modules/updates/extensions",
)
X_SERVER_DIRS: Final = ("/usr/lib", "/usr/lib64")
X_MODULES: Final = ("nvidia_drv.so", "libglxserver_nvidia.so.{version}")


class LibraryLink(NamedTuple):
    """A link that programs expect beside a library and that no loader cache makes; both relative to its directory."""

    library: str
    target: str
    link: str


LINKS: Final = (
    LibraryLink("libcuda.so.{version}", "libcuda.so.1", "libcuda.so"),
    LibraryLink("libnvidia-opticalflow.so.{version}", "libnvidia-opticalflow.so.1", "libnvidia-opticalflow.so"),
    LibraryLink("libGLX_nvidia.so.{version}", "libGLX_nvidia.so.{version}", "libGLX_indirect.so.0"),
    LibraryLink(
        "libnvidia-vulkan-producer.so.{version}",
        "libnvidia-vulkan-producer.so.{version}",
        "libnvidia-vulkan-producer.so",
    ),
    LibraryLink("libnvidia-allocator.so.{version}", "../libnvidia-allocator.so.1", "gbm/nvidia-drm_gbm.so"),
    LibraryLink("libglxserver_nvidia.so.{version}", "libglxserver_nvidia.so.{version}", "libglxserver_nvidia.so"),
)

# What CUDA programs cannot do without, and people look for first: said to be missing where it is.
EXPECTED_LIBRARIES: Final = ("libcuda", "libnvidia-ml", "libnvidia-ptxjitcompiler")
EXPECTED_BINARIES: Final = ("nvidia-smi",)
