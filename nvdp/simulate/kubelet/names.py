"""The kubelet's rule for names of extended resources (the kubelet contract, A.1 step 3)."""

from __future__ import annotations

import re

_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_SUBDOMAIN_LIMIT = 253
_NAME_LIMIT = 63


def is_extended_resource_name(name: str) -> bool:
    """Whether the kubelet would take ``name``; quota prefixes it with ``requests.``, which must stay valid too."""
    if "/" not in name or "kubernetes.io/" in name or name.startswith("requests."):
        return False
    domain, _, own = f"requests.{name}".partition("/")
    return (
        len(domain) <= _SUBDOMAIN_LIMIT
        and _SUBDOMAIN.fullmatch(domain) is not None
        and len(own) <= _NAME_LIMIT
        and _NAME.fullmatch(own) is not None
    )
