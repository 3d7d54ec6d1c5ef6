"""The results on offloading in Markdown: overlap, throughput, hit rates and bandwidth."""

from __future__ import annotations

from typing import Any

from .markdown import table

Results = dict[str, Any]


def timeline(part: Results) -> str:
    """What overlapped with the model's work, the parts of a decode step, and the predicted time of each link."""
    low, high = part["paper_build_share_of_prefill"]
    shares = [
        ["clustering, as a share of the prefill", f"{part['build_share_of_prefill']:.2f}"],
        ["the same in the paper, on its GPU", f"{low:.2f}–{high:.2f}"],
        [
            "clustering after the end of the prefill, as a share of the prefill",
            f"{part['build_after_prefill_share']:.2f}",
        ],
        *(
            [f"{name}: share of its time that overlaps with the prefill's compute", f"{share:.2f}"]
            for name, share in part["overlap_prefill"].items()
        ),
        *([f"{what}: share of a decode step", f"{share:.3f}"] for what, share in part["share_of_step"].items()),
    ]
    links = [
        [link["label"], f"{link['bytes_per_s'] / 1e9:.1f}", f"{1e6 * link['predicted_s_a_step']:.0f}"]
        for link in part["links"]
    ]
    return "\n\n".join([
        f"`{part['method']}` with `store=\"{part['store']}\"` on {part['model']}, {part['tokens']:,} tokens, budget "
        f"{part['budget']}, {part['steps']} decode steps. All work shares the processor's cores.",
        table(["what", "share"], shares),
        f"A step moved {part['moved_bytes_a_step'] / 1e6:.2f} MB in {part['fetches_a_step']:.0f} fetches. The table "
        "has the predicted, not measured, time of these bytes on a link, with one latency per fetch if it is known.",
        table(["link", "GB/s", "predicted µs per step"], links),
    ])  # fmt: skip


def throughput(part: Results) -> str:
    """One row per method: tokens per second by batch, with their range, and when the device was full."""
    batches = sorted({row["batch"] for row in part["rows"]})
    methods = dict.fromkeys(row["method"] for row in part["rows"])
    cells = {(row["method"], row["batch"]): row for row in part["rows"]}
    rows = [
        [
            f"`{name}`", (first := cells[name, batches[0]])["store"],
            f"{first['device_bytes'] / batches[0] / 1e6:.1f}",
            *(_rate(cells.get((name, batch))) for batch in batches),
        ]
        for name in methods
    ]  # fmt: skip
    return "\n\n".join([
        f"{part['model']} in {part['dtype']}, a batch of different texts of {part['prompt_tokens']:,} tokens, budget "
        f"{part['budget']}. Tokens per second of decoding, over all texts: medians of {part['turns']} turns of "
        f"{part['steps_a_turn']} steps, methods in turns; in brackets the minimum and maximum.",
        table(["method", "keys and values", "MB per text on the device", *map(str, batches)], rows),
        f"The device may hold {part['limit_bytes'] / 2**30:.2f} GiB of keys, values and metadata: a limit set for this "
        "table. *full at* is the size that the batch would have, in proportion to the batch before; neither it nor any "
        "larger batch was run. On a CPU, host and device are the same memory, and no bus is crossed. `kvviz.generate` "
        "takes one prompt; batches use `SelectiveCache`, with every method here.",
    ])  # fmt: skip


def _rate(row: Results | None) -> str:
    """A cell: tokens per second with their range, or the size if it does not fit."""
    if row is None:
        return ""
    if row["tokens_per_s"] is None:
        return f"full at {row['device_bytes'] / 2**30:.2f} GiB"
    low, high = row["range"]
    return f"{row['tokens_per_s']:.1f} ({low:.1f}–{high:.1f})"


def cache(part: Results) -> str:
    """Hit rates of tokens and clusters by method and cache, and bytes moved per step."""
    head = ["budget", "R", "token hits", "cluster hits", "paper, 32k", "requested, kB", "fetched, kB"]
    clusters = [
        [
            str(row["budget"]), str(row["recent_steps"]), f"{row['hit_rate']:.2f}", f"{row['group_hit_rate']:.2f}",
            f"{share:.2f}" if (share := part["clusters"]["paper"].get(str(row["recent_steps"]))) else "",
            *_kilobytes(row, "sought_bytes", "fetched_bytes"),
        ]
        for row in part["clusters"]["rows"]
    ]  # fmt: skip
    blocks = part["blocks"]
    head_of_blocks = [
        "cache",
        "capacity",
        "blocks per step",
        "token hits",
        "requested, kB",
        "fetched, kB",
        "blocks, kB",
    ]
    names = ("sought_bytes", "fetched_bytes", "filled_bytes")
    rows = [
        [
            row["policy"].upper(), f"{row['capacity_tokens']:,}", str(row["blocks_a_step"]), f"{row['hit_rate']:.2f}",
            *_kilobytes(row, *names),
        ]
        for row in blocks["rows"]
    ]  # fmt: skip
    rows += [
        [f"R={row['recent_steps']}", "", "", f"{row['hit_rate']:.2f}", *_kilobytes(row, *names)]
        for row in blocks["step_cache"]
    ]
    low, high = blocks["paper"]
    return "\n\n".join([
        f"Real keys of SmolLM2-135M-Instruct, layers {', '.join(map(str, part['layers']))}, the last {part['steps']} "
        "positions as decode steps, keys and values in host memory, float32. Bytes are per step and layer, over all KV "
        "heads.",
        f"`clusterkv` on {part['clusters']['tokens']:,} tokens; R is the number of steps whose tokens stay on the "
        "device. A cluster hit means that all its selected tokens are on the device.",
        table(head, clusters),
        f"`pqcache` on {blocks['tokens']:,} tokens, a budget of {blocks['budget']:.0%}; the paper has {low} to {high} "
        "with 4,096 tokens on HotpotQA. Blocks have 128 tokens; no more are cached than fit. The last rows show the "
        "cache of single tokens by R for comparison.",
        table(head_of_blocks, rows),
    ])  # fmt: skip


def store(part: Results) -> str:
    """The bandwidth of gathering clusters from host memory, compared with plain copies."""
    head = [
        "keys", "KV heads", "tokens", "budget", "copy, GB/s", "gather, GB/s", "gather / memcpy", "gather / copy",
        "fetch / copy",
    ]  # fmt: skip
    rows = [
        [
            row["keys"], str(row["heads"]), f"{row['tokens']:,}", f"{row['budget']:,}",
            f"{row['copy_bytes_per_s'] / 1e9:.1f}", f"{row['load_bytes_per_s'] / 1e9:.1f}",
            f"{row['load_share_of_memcpy']:.2f}", f"{row['load_share_of_copy']:.2f}",
            f"{row['fetch_share_of_copy']:.2f}",
        ]
        for row in part["rows"]
    ]  # fmt: skip
    return "\n\n".join([
        f"Whole clusters of about {part['tokens_per_cluster']} tokens, from host memory to the empty arena of the "
        "device, in float32. GB/s and shares are from the medians of the gather alone, of a plain copy of as many "
        "bytes from contiguous rows, and of the whole fetch of a step, look-ups included. The copy is torch's, with "
        "all threads; memcpy is the C library's, with one.",
        table(head, rows),
    ])  # fmt: skip


def _kilobytes(row: Results, *names: str) -> list[str]:
    return [f"{row[name] / 1e3:.0f}" for name in names]


def cache_lines(part: Results) -> list[list[str]]:
    """docs/measured.md's row: ClusterKV's hit rate of tokens, and that in the paper."""
    paper = part["clusters"]["paper"]
    rows = [row for row in part["clusters"]["rows"] if str(row["recent_steps"]) in paper]
    least = min(row["budget"] for row in rows)
    rates = [
        f"R = {row['recent_steps']}: {row['hit_rate']:.2f} (paper, 32k: {paper[str(row['recent_steps'])]:.2f})"
        for row in rows
        if row["budget"] == least
    ]
    tokens = part["clusters"]["tokens"]
    return [
        [
            f"share of selected tokens already on the device, `clusterkv`, {tokens:,} tokens, budget {least}",
            ", ".join(rates),
        ]
    ]


def store_lines(part: Results) -> list[list[str]]:
    """docs/measured.md's row: the bandwidth of gathering whole clusters."""
    lines = []
    for keys in dict.fromkeys(row["keys"] for row in part["rows"]):
        ranges = []
        for name, words in (("memcpy", "memcpy with one thread"), ("copy", "torch's copy with all")):
            shares = [row[f"load_share_of_{name}"] for row in part["rows"] if row["keys"] == keys]
            ranges.append(f"{min(shares):.2f} to {max(shares):.2f} of {words}")
        lines.append([f"bandwidth of whole clusters gathered from host memory, {keys}, caches cold", ", ".join(ranges)])
    return lines
