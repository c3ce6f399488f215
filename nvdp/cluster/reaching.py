"""Which access there is: by the kubeconfig file if one is given, else by the pod's service account."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from nvdp.cluster.access import SERVICE_ACCOUNT, Access, ServiceAccountAccess
from nvdp.cluster.kubeconfig import KubeconfigAccess


def build_access(
    kubeconfig: Path | None, *, service_account: Path = SERVICE_ACCOUNT, environ: Mapping[str, str] = os.environ
) -> Access:
    """Reads nothing yet: what is missing may come later."""
    if kubeconfig is None:
        return ServiceAccountAccess(service_account, environ=environ)
    return KubeconfigAccess(kubeconfig)
