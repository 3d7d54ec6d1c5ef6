"""Ledger: how a cache spent its tokens and bytes, so that methods can be compared at an equal budget."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from ..metrics.memory import bytes_text
from .cards import card


def budgets_text(budgets: Mapping[int, float]) -> str:
    """The budgets of layers as text: one number if they are equal, otherwise the range; "" without any.

    >>> budgets_text({2: 221.0, 3: 230.0})
    '221 to 230 tokens'
    """
    if not budgets:
        return ""
    least, most = min(budgets.values()), max(budgets.values())
    return f"{most:,.0f} tokens" if least == most else f"{least:,.0f} to {most:,.0f} tokens"


@dataclass(frozen=True)
class Ledger:
    """Tokens attended to per KV head at the last decode step (means over the layers that select), and bytes in all.

    `sinks`, `recent`, `selected`, `merged` (centroids that stand for several tokens) and `generated` add up to
    `attended`. `metadata_bytes` counts what the method stores in addition to keys and values, without spare room;
    `auxiliary_bytes` is its part that is a second copy of keys, `host_metadata_bytes` its part in host memory.
    `kept_bytes` is the memory of keys and values on each tier, spare room and merged tokens included. `peak_bytes` is
    the most that the device held: for each layer the larger of the whole prompt and what it keeps, and the metadata.
    (Layers are filled one after the other, so that the peak of methods that drop tokens is lower with many layers.)

    `moved_bytes` counts what steps move between tiers: the keys and values fetched, `filled_bytes` of them for tokens
    that no step had needed yet (PQCache's blocks); and what computations on the host get (positions, queries, bias, new
    keys of an index) and give back (positions, weights, outputs, log-sum-exp). Tokens that a later part of a prompt
    fetches count too. Not counted are the positions of fetched tokens, and offloading itself. `prefetched_bytes` counts
    the metadata that was fetched in addition. `hit_rate` is the share of the looked-up tokens, without sinks and
    newest, that had a copy on the device; `group_hit_rate` the share of the clusters, pages or blocks that needed no
    fetch, if selections carry details. Both are NaN if nothing was looked up.

    `held_bytes` is what counts in a budget in bytes (`kvviz.bytes` has the rule) after the last step, in all layers:
    what a method keeps of keys, values and merged tokens, or attends to if it keeps all, and its metadata; dense layers
    hold everything. `read_bytes` is what one step reads: the attended keys and values, and `extra_bytes`. `budgets` has
    the budget in tokens of each layer that selects, found from the bytes if it was given in bytes.

    `extra_bytes` is what one step reads for the selection, in all layers, in addition to the attended tokens;
    `extra_share` is its share of all keys of the layers that select: the extra communication of PQCache (arXiv
    2407.12820, section 4.1). The budget governs `selecting_layers` layers. `dense_layers` attend to all tokens by the
    method's choice, `exact_layers` because no method serves them.
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
    held_bytes: int = 0
    read_bytes: int = 0
    budgets: dict[int, float] = field(default_factory=dict)
    kept_bytes: dict[str, int] = field(default_factory=dict)
    host_metadata_bytes: int = 0
    peak_bytes: int = 0
    moved_bytes: int = 0
    filled_bytes: int = 0
    prefetched_bytes: int = 0
    hit_rate: float = math.nan
    group_hit_rate: float = math.nan
    selecting_layers: int = 0
    dense_layers: tuple[int, ...] = ()
    exact_layers: tuple[int, ...] = ()

    @property
    def attended(self) -> float:
        """Tokens attended to per KV head."""
        return self.sinks + self.recent + self.selected + self.merged + self.generated

    @property
    def budget_tokens(self) -> float:
        """The budget in tokens, mean over the layers that select; NaN without any."""
        return sum(self.budgets.values()) / len(self.budgets) if self.budgets else math.nan

    def _governed(self) -> str:
        """How many layers the budget governs, if some are left out; "" otherwise."""
        total = self.selecting_layers + len(self.dense_layers) + len(self.exact_layers)
        return f"{self.selecting_layers} of {total} layers" if self.exact_layers else ""

    def _repr_html_(self) -> str:
        parts = {name: getattr(self, name) for name in ("sinks", "recent", "selected", "merged", "generated")}
        spent = ", ".join(f"{count:,.0f} {name}" for name, count in parts.items() if count)
        kept = ", ".join(f"{bytes_text(size)} on {tier}" for tier, size in self.kept_bytes.items())
        return card("Ledger", "how a cache spent its tokens and bytes", {
            "attended per KV head": f"{self.attended:,.0f} tokens: {spent}" if spent else "0 tokens",
            "budget per layer": budgets_text(self.budgets), "budget governs": self._governed(),
            "keys and values": kept, "metadata": bytes_text(self.metadata_bytes),
            "held, by the rule of kvviz.bytes": bytes_text(self.held_bytes),
            "read, each step": bytes_text(self.read_bytes),
            "moved between tiers": bytes_text(self.moved_bytes),
            "read to select, each step": bytes_text(self.extra_bytes),
            "hit rate": "" if math.isnan(self.hit_rate) else f"{self.hit_rate:.2f}",
        }, [('kvviz.plots.budget_ledger({"name": ledger})', "the parts as bars, beside other ledgers")])  # fmt: skip
