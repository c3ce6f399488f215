"""PCI addresses as NVML writes them, turned into those of the host."""

from __future__ import annotations

from typing import Any


def read_pci(info: Any) -> str | None:
    """The address in a ``nvmlPciInfo_t`` of any version; None if the library filled nothing in."""
    return parse_pci(info.busId) or parse_pci(info.busIdLegacy) or build_pci(info.domain, info.bus, info.device)


def parse_pci(text: str) -> str | None:
    """NVML's ``00000000:1B:00.0`` as the host writes it, ``0000:1b:00.0``; None if it is no PCI address."""
    try:
        domain, bus, rest = text.strip().split(":")
        device, function = rest.split(".")
        return f"{int(domain, 16):04x}:{int(bus, 16):02x}:{int(device, 16):02x}.{int(function, 16):x}"
    except ValueError:
        return None


def build_pci(domain: int, bus: int, device: int) -> str | None:
    """The address of function 0; None if the library filled nothing in."""
    return f"{domain:04x}:{bus:02x}:{device:02x}.0" if domain or bus or device else None
