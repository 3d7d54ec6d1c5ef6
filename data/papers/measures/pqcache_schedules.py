"""PQCache's work beside the model's, and after it: overlapped against sequential scheduling."""

from __future__ import annotations

import os
from contextlib import nullcontext
from typing import Any

from measures import Rows, measure, texts

SCHEDULES = ("overlapped", "sequential")


@measure(lengths=(128,), rounds=1, steps=2, share=0.5)
def pqcache_schedules(
    lm: Any, lengths: tuple[int, ...] = (512, 1024, 2048), rounds: int = 2, steps: int = 8, share: float = 0.1
) -> Rows:
    """Seconds by phase and part of overlapped and of sequential runs, keys in host memory, and the events of one.

    `part`: a stream of the timeline ("compute", "clustering", "transfer"), or "end to end": the prompt until all its
    work is finished, or a step. `load` is the machine's load average after the run; on a busy machine there is no free
    processor to overlap with. `event` rows are those of the longest prompt in the last round.
    """
    import kvviz
    from kvviz.offload.background import sequential

    rows: Rows = []
    for number in range(rounds):
        for tokens in lengths:
            (ids,) = texts(lm, tokens, 1)
            for schedule in SCHEDULES:
                with sequential() if schedule == "sequential" else nullcontext():
                    out = kvviz.generate(
                        lm, ids, "pqcache", share, max_new_tokens=steps + 1, store="host", timeline=True
                    )
                known = {"tokens": tokens, "schedule": schedule}
                load = {"round": number, "load": os.getloadavg()[0]}
                rows += [{"kind": "part", **known, **load, **part} for part in _parts(out.timeline)]
                if number == rounds - 1 and tokens == max(lengths):
                    events = out.timeline.to_frame().round(6).query("phase == 'prefill'").to_dict("records")
                    rows += [{"kind": "event", **known, **event} for event in events]
    return rows


def _parts(timeline: Any) -> Rows:
    """Seconds and overlap of each part of both phases; a step's are means."""
    parts = []
    for phase in ("prefill", "decode"):
        events = [event for event in timeline.events if event.phase == phase]
        steps = sum(event.stream == "pass" for event in events) if phase == "decode" else 1
        ends = max(event.end_s for event in events) - min(event.start_s for event in events)
        whole = ends if phase == "prefill" else timeline.seconds("pass", phase=phase) / steps
        beside = timeline.overlap(phase)
        for stream in ("compute", "clustering", "transfer"):
            seconds = timeline.seconds(stream, phase=phase)
            if seconds:
                share = None if stream == "compute" else float(beside[stream])
                parts.append({"phase": phase, "part": stream, "seconds": seconds / steps, "overlap": share})
        parts.append({"phase": phase, "part": "end to end", "seconds": whole, "overlap": None})
    return parts
