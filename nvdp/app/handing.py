"""Composes what hands devices over besides the answers to the kubelet: the writer of the CDI specs."""

from __future__ import annotations

from nvdp.config.process import ProcessOptions
from nvdp.host.cdi_files import CdiFiles
from nvdp.host.cdi_found import FoundFiles
from nvdp.log import Log
from nvdp.services.cdi import CdiService
from nvdp.services.events import Post


def build_cdi_service(options: ProcessOptions, *, post: Post, log: Log) -> CdiService:
    """Not started yet."""
    return CdiService(
        post,
        files=CdiFiles(options.cdi_dir),
        load_found=FoundFiles(
            host_dev=options.host_dev,
            is_real=options.simulated_node is None,
            in_pod=options.host_dev.is_dir(),
        ).load,
        log=log,
        feature_flags=options.cdi_feature_flags,
        disabled_hooks=options.cdi_disable_hooks,
    )
