"""Composes what hands devices over besides the answers to the kubelet: the writer of the CDI specs."""

from __future__ import annotations

import os

from nvdp.config.process import CDI_DIR, HOST_DEV, ProcessOptions
from nvdp.host.cdi_files import CdiFiles
from nvdp.host.cdi_found import FoundFiles
from nvdp.log import Log
from nvdp.services.cdi import CdiService
from nvdp.services.events import Post


def build_cdi_service(options: ProcessOptions, *, post: Post, log: Log) -> CdiService:
    """Not started yet."""
    in_pod = "KUBERNETES_SERVICE_HOST" in os.environ  # the kubelet gives it to every container
    # A node has nothing of a simulated driver, but for a /dev that is made for it.
    is_real = options.simulated_node is None or options.host_dev != HOST_DEV
    # What a machine's own runtimes read is none of a simulated node's business.
    is_own = options.simulated_node is None or options.cdi_dir != CDI_DIR
    return CdiService(
        post,
        files=CdiFiles(options.cdi_dir if is_own else options.run_dir / "cdi", in_pod=in_pod),
        load_found=FoundFiles(host_dev=options.host_dev, is_real=is_real, in_pod=in_pod).load,
        log=log,
        feature_flags=options.cdi_feature_flags,
        disabled_hooks=options.cdi_disable_hooks,
    )
