"""The results as Markdown: the table of docs/measured.md, and one table for each part that measures all methods."""

from __future__ import annotations

from typing import Any

from . import (
    decode,
    decode_kernels,
    diagnosis,
    edits,
    long_context,
    long_generation,
    misses,
    notebooks,
    offload_tables,
    schedules,
    widgets,
)
from .markdown import table

Results = dict[str, Any]


def summary(results: Results) -> str:
    """The table of docs/measured.md."""
    rows: list[list[str]] = []
    lines = {
        "imports": _imports, "decode": decode.lines, "decode_kernels": decode_kernels.lines,
        "edits": edits.lines, "diagnosis": diagnosis.lines,
        "kernels": _kernels, "recall": _recall_lines,
        "cache": offload_tables.cache_lines, "store": offload_tables.store_lines, "grid": _grid,
        "widget": widgets.lines, "notebooks": notebooks.lines,
    }  # fmt: skip
    for name, part in lines.items():
        if name in results:
            rows += part(results[name])
    return table(["what", "measured"], rows) + "\n\n" + origin(results["machine"])


def origin(machine: Results) -> str:
    """Where and with what the results were measured."""
    return (
        f"{machine['hardware']}; torch {machine['versions']['torch']}, transformers "
        f"{machine['versions']['transformers']}, Python {machine['python']}, seed {machine['seed']}. "
        "Written by `make bench`."
    )


def _grid(part: Results) -> list[list[str]]:
    what = (
        f"a grid of {len(part['methods'])} methods and {len(part['budgets'])} budgets on one sample, {part['task']}, "
        f"{part['length']:,} tokens, one thread: `generate` for each cell, as a multiple of `evaluate`"
    )
    return [[what, f"{part['ratio']:.1f}, with {part['prefills']} prefill for {part['cells']} cells"]]


def recall(part: Results) -> str:
    """One row per method: which tokens it found, how much attention they hold, and what finding them cost."""
    if "rows" not in part:
        return ""
    head = [
        "method", "recall", "by seed", "attention mass", "by seed", "output error", "attended", "merged",
        "metadata B/token", "of it copies of keys", "read to select",
    ]  # fmt: skip
    rows = [
        [
            f"`{row['label']}`", _by_window(row["recall"]), _by_seed(row["recall"]), _by_window(row["attention_mass"]),
            _by_seed(row["attention_mass"]), _by_window(row["output_error"]), f"{row['attended_tokens']:.0f}",
            f"{row['merged_tokens']:.0f}", f"{row['metadata_bytes']:.0f}", f"{row['auxiliary_bytes']:.0f}",
            f"{row['extra_share']:.3f}",
        ]
        for row in part["rows"]
    ]  # fmt: skip
    held = ", ".join(
        f"{order}: {'yes' if as_expected else 'NO'}" for order, as_expected in part["orders_of_mass"].items()
    )
    return "\n\n".join([
        f"Real keys of SmolLM2-135M-Instruct, {part['tokens']:,} tokens, budget {part['budget']}, layers "
        f"{', '.join(map(str, part['layers']))}, the last {part['steps']} positions as queries. Means over "
        f"{len(part['windows'])} stretches of text; in brackets the least and largest of them, and of the means by "
        "seed where a method has one.",
        table(head, rows),
        "Recall counts the B tokens with the largest exact attention (mean over a KV head's query heads), B = budget + "
        "tokens since the prompt, the same B for every method. A token counts for a KV head if any of its query heads "
        "attended to it, which is why methods that select for each query head attend to more tokens than the budget. "
        "Recall and mass of a method that merges tokens count its raw tokens only; the output error compares all "
        "methods. Bytes are per token and layer, in float32, where keys and values take 1,536. *Read to select* is "
        "what a step reads in order to select, beside the keys and values of the selected tokens, as a share of all "
        "keys.",
        f"Attention mass in the expected order: {held}." if held else "",
        _left_out(part),
    ]).strip()  # fmt: skip


def needle(part: Results) -> str:
    """One row per method and budget: needles found, and means over what was attended to."""
    head = ["method", "budget", "found", "95 %", "recall", "attention mass", "output error", "attended", "metadata, MB"]
    rows = [
        [
            f"`{row['label']}`", str(row["budget"] or "all"), f"{row['correct']}/{row['of']}",
            "–".join(f"{bound:.2f}" for bound in row.get("interval", ())), f"{row['recall']:.2f}",
            f"{row['attention_mass']:.3f}", f"{row['output_error']:.3f}",
            f"{row['least']:.0f}–{row['most']:.0f}" if "least" in row else f"{row['attended_tokens']:.0f}",
            f"{row['metadata_bytes'] / 1e6:.1f}",
        ]
        for row in part["rows"]
    ]  # fmt: skip
    return "\n\n".join([
        f"{part['model']}, contexts of {part['tokens']:,} tokens, {part['samples']} samples, each with its own needle, "
        f"depth and piece of text (seeds {part['seeds'][0]} to {part['seeds'][-1]}). The question is seen only after "
        f"the context was compressed, and fed as decode steps. One needle: \"{part['example']['needle']}\" The "
        f"question to it: \"{part['example']['question'].strip()}\"",
        table(head, rows),
        "Every method attends to equally many tokens in each step, as far as it can: the question and the answer count "
        "within the budget. *Attended*: the fewest and the most tokens per KV head in a step, means over layers. A "
        "choice per query head (`official`, MagicPIG) attends to more per KV head; InfiniGen with its threshold, "
        "MagicPIG and CTkvr may find fewer than the budget allows. The interval of the share found is a bootstrap over "
        "samples."
        if "least" in part["rows"][0]
        else "Measured before a step's budget was fixed: the question and the answer came on top of it.",
        "Recall here counts as many of the exact best tokens as the method attended to; layers that a method keeps "
        "dense are left out. Both are as `kvviz.compare` reports them. Metadata is that of all layers, in float32, "
        f"where keys and values take {part['tokens'] * 30 * 1536 / 1e6:.0f} MB.",
        _left_out(part),
    ]).strip()  # fmt: skip


def build(part: Results) -> str:
    """One row per method: seconds to build a layer's state, and how they grow."""
    head = ["method", "operations", *(f"{length:,}" for length in part["lengths"]), "exponents"]
    rows = [
        [f"`{row['label']}`", row["operations"], *(_ms(value) for value in row["seconds"]), _exponents(row)]
        for row in part["rows"]
    ]
    crossing = part["crossing"]
    lengths = crossing["lengths"]
    head_of_race = ["clusters", *(f"{length:,}" for length in lengths), "index cheaper from"]
    races = [
        [name, *_race(race), f"{race['index_cheaper_from']:,}" if race["index_cheaper_from"] else "nowhere"]
        for name, race in crossing["settings"].items()
    ]
    return "\n\n".join([
        f"Milliseconds to build the state of one layer (3 KV heads, 9 query heads, 64 channels, budget "
        f"{part['budget']}) by tokens of the prompt, medians of {part['runs']}; the power of the length with which "
        "they grow; and the operations that each method's `build` states.",
        table(head, rows),
        "ClusterKV's k-means beside CTkvr's index of queries, k-means / index in ms:",
        table(head_of_race, races),
    ])  # fmt: skip


def step(part: Results) -> str:
    """One row per method: time to select tokens in a decode step, how it grows, and what is computed."""
    lengths = part["lengths"]
    head = ["method", *(f"{length:,}" for length in lengths), "exponents", "MACs", "largest operand"]
    rows = [
        [
            f"`{row['label']}`", *(f"{1e6 * value:.0f}" for value in row["seconds"]), _exponents(row),
            f"{row['macs_share'][-1]:.3f}", f"{row['largest_operand_share'][-1]:.3f}",
        ]
        for row in part["rows"]
    ]  # fmt: skip
    return "\n\n".join([
        f"Microseconds of `select` in one layer, budget {part['budget']}, by tokens cached, medians of {part['steps']} "
        f"steps, and the power of the length with which they grow. Operations at {lengths[-1]:,} tokens, as a share of "
        "what exact scores of all keys cost; work outside torch (faiss) is not counted.",
        table(head, rows),
    ])  # fmt: skip


def ablations(part: Results) -> str:
    """One row per changed field."""
    measures = {"recall": "recall", "attention_mass": "mass", "output_error": "output error"}
    cells = [(name, budget) for name in measures for budget in part["rows"][0]["budgets"]]
    head = ["method", "fields", *(f"{measures[name]}, {budget}" for name, budget in cells)]
    rows = [
        [
            f"`{row['method']}`",
            ", ".join(f"{name}={value}" for name, value in row["fields"].items()) or "defaults",
            *(f"{row['budgets'][budget][name]:.3f}" for name, budget in cells),
        ]
        for row in part["rows"]
    ]
    return "\n\n".join([
        f"{part['tokens']:,} tokens of real keys, layers {', '.join(map(str, part['layers']))}, one text and one seed: "
        "small differences mean nothing. The budget stands after each measure.",
        table(head, rows),
    ])  # fmt: skip


def iterations(part: Results) -> str:
    """The fit of PQCache's iterations."""
    return f"What one layer's prefill hides of PQCache's clustering:\n\n```\n{part['description']}\n```"


def causes(part: Results) -> str:
    """Needles found by other settings, and what merging costs the heaviest tokens."""
    found = [[f"`{row['label']}`", f"{row['correct']}/{row['of']}", f"{row['recall']:.2f}"] for row in part["rows"]]
    merged = [
        [str(row["budget"]), str(row["layer"]), f"{row['largest_degree']:,}", f"{row['shortfall']:.2f}"]
        for row in part["merging"]
    ]
    return "\n\n".join([
        f"The first {part['samples']} needles (in the first half of their contexts), budget {part['budget']}, at other "
        "settings than the papers':",
        table(["method", "found", "recall"], found),
        f"CentroidKV after {part['prompt']:,} tokens: the tokens of the largest centroid, and by how much the logits "
        "of the 16 tokens with most attention between sinks and recent window exceed those of their centroids:",
        table(["budget", "layer", "largest centroid", "shortfall"], merged),
    ])  # fmt: skip


# The tables with all methods, by part: title and function.
LONG = {
    "recall": ("Tokens found on real keys", recall),
    "needle": ("Needles found", needle),
    "build": ("Building", build),
    "step": ("Selecting", step),
    "ablations": ("One field changed", ablations),
    "schedules": ("CentroidKV's schedules", schedules.each),
    "iterations": ("PQCache's iterations", iterations),
    "causes": ("Why fewer needles", causes),
    "misses": ("Where needles are lost", misses.each),
    "timeline": ("What runs at the same time", offload_tables.timeline),
    "cache": ("Copies on the device", offload_tables.cache),
    "throughput": ("Tokens per second by batch", offload_tables.throughput),
    "long_generation": ("Long generations", long_generation.each),
    "long_context": ("Long prompts of a hybrid model", long_context.each),
    "store": ("Clusters fetched from host memory", offload_tables.store),
    "widget": ("Widgets in the browser", widgets.every_change),
    "notebooks": ("Notebooks", notebooks.each),
}


def document(results: Results) -> str:
    """Every table with all methods, as one page."""
    found = [f"## {title}\n\n{of(results[name])}" for name, (title, of) in LONG.items() if name in results]
    return "\n\n".join(["# Every method, measured", origin(results["machine"]), *found]) + "\n"


def _imports(part: Results) -> list[list[str]]:
    loads = f"{part['load_s']:.2f} s; {part['load_with_imports_s']:.1f} s with the imports of torch and transformers"
    return [
        ["`import kvviz`, `import kvviz.plots`", f"{part['kvviz_s']:.2f} s, {part['kvviz.plots_s']:.2f} s"],
        ["`kvviz.load()`, de-quantised before", loads],
    ]


def _kernels(part: Results) -> list[list[str]]:
    return [_to_inertia(row) if "ratio_to_scikit_learn" in row else _at_once(row) for row in part["results"]]


def _at_once(row: Results) -> list[str]:
    rival = "scikit-learn's" if "scikit_learn_ms" in row else "SDPA's over all"
    return [f"{row['name']}: time as a share of {rival}", f"{row['ratio']:.2f}"]


def _to_inertia(row: Results) -> list[str]:
    what, _, iterations = row["name"].partition(", to the inertia of ")
    ratios = {"scikit-learn": row["ratio_to_scikit_learn"], "faiss": row.get("ratio_to_faiss")}
    shares = [f"{name} {ratio:.2f}" for name, ratio in ratios.items() if ratio is not None]
    what = (
        f"{what}: time to match the baseline's inertia after {iterations}, by over-relaxed iterations, as a share of "
        "the baseline's time"
    )
    return [what, ", ".join(shares)]


def _recall_lines(part: Results) -> list[list[str]]:
    methods = {name: by_budget for name, by_budget in part["methods"].items() if name != "oracle"}
    lines = []
    for budget in next(iter(methods.values())):
        cells = ", ".join(f"{name} {by_budget[budget]['recall']:.2f}" for name, by_budget in methods.items())
        lines.append([f"recall of the oracle's tokens, {part['tokens']:,} tokens, budget {budget}", cells])
    return lines


def _by_window(spread: Results) -> str:
    low, high = spread["windows"]
    return f"{spread['mean']:.3f} ({low:.3f}–{high:.3f})"


def _by_seed(spread: Results) -> str:
    return "–".join(f"{bound:.3f}" for bound in spread["seeds"]) if spread["seeds"] else ""


def _exponents(row: Results) -> str:
    return ", ".join(f"{exponent:.1f}" for exponent in row["exponents"])


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g}"


def _race(race: Results) -> list[str]:
    pairs = zip(race["seconds"]["kmeans"], race["seconds"]["index"], strict=True)
    return [f"{_ms(kmeans)} / {_ms(index)}" for kmeans, index in pairs]


def _left_out(part: Results) -> str:
    names = [f"`{label}` ({reason})" for label, reason in part["left_out"].items()]
    return f"Left out: {', '.join(names)}." if names else ""
