"""Where keys and values are kept, and what is moved between device, host memory and disk."""

from .arena import StepCache
from .block_cache import BlockCache
from .device_store import DeviceStore
from .kvstore import KVStore
from .link import LinkModel

__all__ = ["BlockCache", "DeviceStore", "KVStore", "LinkModel", "StepCache"]
