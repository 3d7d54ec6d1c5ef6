"""Where a cache's tokens and bytes went, so that methods can be compared at an honest equal budget."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Ledger:
    """Tokens attended per KV head at the last decode step (means over the layers that select), and bytes in all.

    `sinks`, `recent`, `selected`, `merged` (centroids that stand for several tokens) and `generated` add up to
    `attended`. `metadata_bytes` is what the method keeps beside keys and values, `auxiliary_bytes` the part of it that
    is keys kept a second time; `kept_bytes` the memory of keys and values on each tier, spare room and merged tokens
    included. `host_metadata_bytes` is the part of the metadata in host memory.

    `moved_bytes` is what was fetched from another tier, `filled_bytes` the part of it that no step had asked for yet
    (PQCache's blocks), `prefetched_bytes` the metadata that was fetched besides. `hit_rate` is the share of the sought
    tokens, sinks and newest left out, that had a copy on the device; `group_hit_rate` the share of the clusters, pages
    or blocks that needed no fetch, where selections carry details. Both are NaN where nothing was sought.

    `extra_bytes` is what one step reads to choose, beside the attended tokens, in all layers; `extra_share` the same as
    a share of all keys of the layers that select: the extra communication of PQCache (arXiv 2407.12820, section 4.1).
    `dense_layers` attend everything by the method's choice, `exact_layers` because no method serves them.
    """

    sinks: float = 0.0
    recent: float = 0.0
    selected: float = 0.0
    merged: float = 0.0
    generated: float = 0.0
    metadata_bytes: int = 0
    auxiliary_bytes: int = 0
    extra_bytes: int = 0
    extra_share: float = 0.0
    kept_bytes: dict[str, int] = field(default_factory=dict)
    host_metadata_bytes: int = 0
    moved_bytes: int = 0
    filled_bytes: int = 0
    prefetched_bytes: int = 0
    hit_rate: float = math.nan
    group_hit_rate: float = math.nan
    dense_layers: tuple[int, ...] = ()
    exact_layers: tuple[int, ...] = ()

    @property
    def attended(self) -> float:
        """Tokens attended per KV head."""
        return self.sinks + self.recent + self.selected + self.merged + self.generated

    @property
    def outer_metadata_bytes(self) -> int:
        """Deprecated name of `host_metadata_bytes`."""
        warnings.warn("Ledger.outer_metadata_bytes is now host_metadata_bytes", DeprecationWarning, stacklevel=2)
        return self.host_metadata_bytes
