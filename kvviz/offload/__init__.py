"""Where keys and values are kept, and what is moved between device, host memory and disk."""

from .kvstore import KVStore
from .store import DeviceStore

__all__ = ["DeviceStore", "KVStore"]
