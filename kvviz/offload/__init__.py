"""Where keys and values are kept."""

from .store import DeviceStore

__all__ = ["DeviceStore"]
