"""calibrated_squeezed_attention(): Squeezed Attention with the threshold for a target sparsity."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import InvalidInputError
from ..methods import create
from ..methods.squeezed_attention import SqueezedAttention
from ..models import LanguageModel
from ..trace import Trace
from .capturing import capture
from .replaying import check_finite, trace_context

__all__ = ["calibrated_squeezed_attention"]

UNLIMITED = 0.999  # a budget that leaves the number of tokens to the threshold
OPERATION = "calibrated_squeezed_attention"


@torch.no_grad()
def calibrated_squeezed_attention(
    source: LanguageModel | Trace,
    prompt: str | Tensor | None = None,
    sparsity: float = 0.9,
    queries: int = 100,
    **fields: Any,
) -> SqueezedAttention:
    """A SqueezedAttention whose `threshold` leaves out the share `sparsity` of the fixed context's keys, on average.

    `source` is a model with a `prompt` (text or int64 [1, L]), or a Trace of one. The last `queries` tokens play decode
    steps: the keys before them are clustered in each layer that is not dense, and their queries are compared with the
    clusters. One threshold serves all layers and heads; sparse heads attend to fewer keys, others to more. Sinks and
    recent window count as attended to, the tokens after the fixed context do not count. `fields` are those of the
    method, `preset` among them; the default `budget` is 99.9 % of the prompt, so that the threshold decides alone. A
    smaller budget limits heads after the calibration. By default generated tokens come on top, as in the paper.

    Raises InvalidInputError for a `sparsity` outside 0 to 1 or too large for sinks and recent window, `queries` outside
    1 to L − 1, a `threshold` among the fields, a Trace with a prompt or a model without one, and what `capture`
    refuses.

    Source: Squeezed Attention (arXiv 2411.09688), section 4, which calibrates on the last queries of the fixed context;
    100 is the number of last tokens that the published code never clusters. Here the keys of the last queries are never
    clustered for the calibration: a query's own neighbours would take most of its estimated weight, and the threshold
    would be too low for decode steps, whose neighbours are in no cluster. With a target of 0.7, the next 64 tokens of
    three prefixes of a text had sparsities of 0.67 to 0.76, instead of 0.49 to 0.56 (SmolLM2-135M, layer 14).
    """
    if "threshold" in fields:
        raise InvalidInputError(OPERATION, f"threshold {fields['threshold']}", "a sparsity, not a threshold")
    if not 0 <= sparsity < 1:
        raise InvalidInputError(f"{OPERATION}: sparsity", sparsity, "0 <= sparsity < 1")
    defaults: dict[str, Any] = {"budget": UNLIMITED, "generated": "on_top"}
    method = cast(SqueezedAttention, create("squeezed_attention", **defaults | fields))
    trace = _trace(source, prompt)
    length = len(trace) - queries  # of the fixed context
    if not 1 <= queries < len(trace):
        raise InvalidInputError(f"{OPERATION}: queries", queries, f"1 to {len(trace) - 1} of {len(trace)} tokens")
    always = min(method.sinks + method.recent, length)  # of the fixed context
    clustered = (1 - sparsity) * length - always  # keys per head and query that clusters are to contribute
    if clustered < 0:
        wanted = f"at most {1 - always / length:.3f}, what {always} sinks and recent tokens of {length} leave"
        raise InvalidInputError(f"{OPERATION}: sparsity", sparsity, wanted)
    layers = [layer for layer in trace.layers if not method.is_dense(layer)]
    scored = [_scored(trace, layer, method, queries) for layer in layers]
    if not scored:
        raise InvalidInputError(OPERATION, f"{method.dense_layers} dense layers", f"one of {trace.layers} that selects")
    scores, sizes = (np.concatenate(arrays, axis=None) for arrays in zip(*scored, strict=True))
    heads = sum(each.shape[0] * each.shape[1] for each, _ in scored)
    return replace(method, threshold=_threshold(scores, sizes, clustered * heads))


def _trace(source: LanguageModel | Trace, prompt: str | Tensor | None) -> Trace:
    if isinstance(source, Trace):
        if prompt is not None:
            raise InvalidInputError(f"{OPERATION}: prompt", "a prompt and a Trace", "a model and a prompt, or a Trace")
        return source
    if prompt is None:
        raise InvalidInputError(f"{OPERATION}: prompt", "none", "the fixed context, text or int64 [1, L]")
    return capture(source, prompt)


def _scored(
    trace: Trace, layer: int, method: SqueezedAttention, queries: int
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Scores and sizes of a layer's clusters, both [queries, R, C], of the keys before the last queries."""
    check_finite(OPERATION, trace, layer)
    last, keys, values = (
        torch.from_numpy(array.astype("float32"))
        for array in (
            trace.queries[layer][:, -queries:], trace.keys[layer][:, :-queries], trace.values[layer][:, :-queries],
        )
    )  # fmt: skip
    context = trace_context(trace, layer)
    state = method.build(context, last[None, :, :0], keys[None], values[None])
    scores = method.scores(state, last.transpose(0, 1))  # one state, and a batch of queries
    shared = scores.shape[1] // context.n_kv_heads
    return scores.numpy(), state.sizes.repeat_interleave(shared, dim=1).expand(scores.shape).numpy()


def _threshold(scores: NDArray[np.float32], sizes: NDArray[np.int64], keys: float) -> float:
    """The threshold above which clusters have nearest to this number of keys, between two scores if it can be."""
    order = np.argsort(-scores, kind="stable")
    ranked = np.concatenate([[1.0], scores[order].astype(np.float64), [0.0]])
    chosen = int(np.abs(np.concatenate([[0], sizes[order].cumsum()]) - keys).argmin())  # clusters above the threshold
    return float(ranked[chosen : chosen + 2].mean())
