"""Generation: the result of generate()."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..trace import Ledger, Recording
from ..trace.cards import card, layers_text
from ..trace.timeline import Timeline


@dataclass(frozen=True)
class Timings:
    """Seconds, without recording: `ttft_s` to the first token (prefill, building, question), `tt2t_s` to the second,
    `tpot_s` per token after the first (NaN for one token), `build_s` to build the method's states, overlapped or not.
    """

    ttft_s: float
    tt2t_s: float
    tpot_s: float
    build_s: float


@dataclass(frozen=True)
class Generation:
    """The result of a generation: text, token ids, timings, ledger, recording and timeline.

    `ledger` says where tokens and bytes are, `recording` what each step attended to, and `timeline` when compute,
    clustering and transfers ran. The last two are None unless requested. `text` ends before a stop string; `token_ids`
    are all that were written. Prompts that ran together have one cache, so that they share the ledger: its tokens are
    means over the prompts, its bytes those of all of them.
    """

    text: str
    token_ids: list[int]
    timings: Timings
    ledger: Ledger
    recording: Recording | None = field(default=None, repr=False)
    timeline: Timeline | None = field(default=None, repr=False)

    def _repr_html_(self) -> str:
        recording, times = self.recording, self.timings
        recorded: dict[str, str] = {}
        if recording is not None:
            recorded = {
                "method": f"{recording.title}, budget {recording.budget:,}", "model": recording.model,
                "prompt": f"{recording.prompt_length:,} tokens",
                "layers": layers_text(recording.layers, recording.geometry.n_layers),
            }  # fmt: skip
        look = ("kvviz.widgets.DecodeStepper(out.recording)", "what each step attended to")
        again = ("kvviz.generate(…, record=True)", "keep what each step attends to")
        return card("Generation", "the result of a generation", {
            "text": self.text, **recorded, "length": f"{len(self.token_ids):,} new tokens",
            "times": f"{times.ttft_s:.2f} s to the first token, {times.tpot_s:.3f} s per token after it",
            "attended per KV head": f"{self.ledger.attended:,.0f} tokens at the last step",
        }, [look if recording is not None else again, ("out.ledger", "where tokens and bytes are")])  # fmt: skip
