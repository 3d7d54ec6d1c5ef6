"""Stores for keys and values on the device, in host memory or on disk, and the transfers between them."""

from .arena import StepCache
from .block_cache import BlockCache
from .codec import Codec
from .device_store import DeviceStore
from .kvstore import KVStore
from .link import LinkModel

__all__ = ["BlockCache", "Codec", "DeviceStore", "KVStore", "LinkModel", "StepCache"]
