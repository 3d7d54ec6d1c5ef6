"""The benchmarks' results as Markdown tables."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "data" / "benchmarks"))  # scripts, not an installed package

from parts import offload_tables, tables, widgets  # noqa: E402  # found through the line above

# Not imported: `run` is also the name of the script of the notebooks.
between = runpy.run_path(str(ROOT / "data" / "benchmarks" / "run.py"))["between"]


class TestMarkdown:
    def test_only_the_text_between_the_markers_changes(self):
        page = "before\n<!-- a -->\nold\n<!-- /a -->\nafter <!-- b -->\n"
        assert between(page, "a", "new") == page.replace("old", "new")
        assert between(page, "b", "new") == page
        assert between(page, "c", "new") == page

    def test_a_table(self):
        assert tables.table(["a", "b"], [["1", "2"], ["3", "4"]]) == "| a | b |\n|---|---|\n| 1 | 2 |\n| 3 | 4 |"


def cells(page: str) -> list[list[list[str]]]:
    """The tables of a page, as lines of cells with the header first; all lines have the header's length."""
    blocks = [block.splitlines() for block in page.split("\n\n") if block.startswith("|")]
    page_tables = [[[cell.strip() for cell in line.split("|")[1:-1]] for line in block] for block in blocks]
    for head, rule, *rows in page_tables:
        assert set(rule) == {"---"}
        assert all(len(row) == len(head) for row in [rule, *rows])
    return [[head, *rows] for head, _, *rows in page_tables]


LATENCY = {
    "widget": "stepper", "change": "step", "place": "JupyterLab", "size": "8,192 tokens", "limit_ms": 100,
    "median_ms": 16.25, "worst_ms": 23.5, "changes": 30,
}  # fmt: skip


class TestWidgets:
    """Milliseconds from a key press to a new frame."""

    def test_one_line_per_widget_in_jupyterlab(self):
        layer = LATENCY | {"change": "layer", "median_ms": 80.0, "worst_ms": 90.0}
        jumpy = LATENCY | {"change": "KV head", "median_ms": 20.0, "worst_ms": 120.0}
        canvas = LATENCY | {"widget": "canvas", "change": "another matrix", "size": "2,048 × 2,048", "limit_ms": 150}
        page = LATENCY | {"place": "page", "median_ms": 1.0, "worst_ms": 999.0}
        longer = LATENCY | {"size": "32,768 tokens", "limit_ms": 200, "median_ms": 40.0}
        assert widgets.lines({"rows": [page, LATENCY, jumpy, layer, canvas, longer]}) == [
            [
                "stepper in JupyterLab, key press to new frame, 8,192 tokens; limit 100 ms",
                "16 ms (step) to 80 ms (layer), at worst 120 ms (KV head)",
            ],
            ["canvas in JupyterLab, key press to new frame, 2,048 × 2,048; limit 150 ms", "16 ms, at worst 24 ms"],
            ["stepper in JupyterLab, key press to new frame, 32,768 tokens; limit 200 ms", "40 ms, at worst 24 ms"],
        ]

    def test_one_row_per_control(self):
        (rows,) = cells(widgets.every_change({"rows": [LATENCY]}))
        assert rows[1:] == [["stepper", "8,192 tokens", "JupyterLab", "step", "30", "16", "24", "100"]]
        assert tables.LONG["widget"] == ("Widgets in the browser", widgets.every_change)


class TestKernels:
    """The lines of the kernels in docs/measured.md."""

    ROWS = (
        {"name": "k-means, C = 102, 10 iterations", "scikit_learn_ms": 30.0, "ratio": 0.914},
        {
            "name": "k-means, 3 x 8192 x 64, C = 102, to the inertia of 10 iterations",
            "scikit_learn_ms": 30.0, "ratio": 0.456, "ratio_to_scikit_learn": 0.456, "ratio_to_faiss": 0.789,
            "ratio_to_fastkmeans": 0.123, "inertia_ratio_to_scikit_learn": 0.999, "inertia_ratio_to_faiss": 0.998,
        },
        {"name": "attention, 512 of 8192 tokens", "ours_us": 108.0, "full_sdpa_us": 714.0, "ratio": 0.151},
    )  # fmt: skip

    def lines(self, rows):
        machine = {"hardware": "a CPU", "versions": {"torch": "2", "transformers": "5"}, "python": "3.11", "seed": 0}
        (table,) = cells(tables.summary({"kernels": {"results": list(rows)}, "machine": machine}))
        return table[1:]

    def test_each_line_names_the_baseline_of_its_share(self):
        iterations, to_inertia, attention = self.lines(self.ROWS)
        assert iterations == ["k-means, C = 102, 10 iterations: time as a share of scikit-learn's", "0.91"]
        assert to_inertia == [
            "k-means, 3 x 8192 x 64, C = 102: time to match the baseline's inertia after 10 iterations, "
            "by over-relaxed iterations, as a share of the baseline's time",
            "scikit-learn 0.46, faiss 0.79",
        ]
        assert attention == ["attention, 512 of 8192 tokens: time as a share of SDPA's over all", "0.15"]

    def test_a_baseline_that_is_not_installed_is_left_out(self):
        row = {key: value for key, value in self.ROWS[1].items() if "faiss" not in key}
        assert self.lines([row | {"missing": "faiss"}])[0][1] == "scikit-learn 0.46"

    def test_the_names_are_those_of_the_benchmark(self, monkeypatch):
        pytest.importorskip("faiss")
        monkeypatch.syspath_prepend(str(ROOT / "kernels"))
        from benchmarks import kmeans

        row = kmeans.race_to_inertia(kmeans.synthetic_keys(1, 400, 8), 5)
        label, shares = self.lines([row])[0]
        assert label.startswith("k-means, 1 x 400 x 8, C = 5: time to match the baseline's inertia after 10 iter")
        ratios = row["ratio_to_scikit_learn"], row["ratio_to_faiss"]
        assert shares == "scikit-learn {:.2f}, faiss {:.2f}".format(*ratios)


class TestOffload:
    """The tables of the costs of offloading keys and values."""

    def test_store(self):
        row = {
            "keys": "SmolLM2's", "heads": 3, "tokens": 8192, "budget": 1024, "bytes": 1_572_864,
            "fetch_bytes_per_s": 2.5e9, "load_bytes_per_s": 4.06e9, "copy_bytes_per_s": 5e9,
            "memcpy_bytes_per_s": 4e9, "load_share_of_memcpy": 1.015, "load_share_of_copy": 0.812,
            "fetch_share_of_copy": 0.5,
        }  # fmt: skip
        page = offload_tables.store({"tokens_per_cluster": 80, "rows": [row, row | {"keys": "scattered clusters"}]})
        assert page.startswith("Whole clusters of about 80 tokens")
        ((head, *rows),) = cells(page)
        assert dict(zip(head, rows[0], strict=True)) == {
            "keys": "SmolLM2's", "KV heads": "3", "tokens": "8,192", "budget": "1,024", "copy, GB/s": "5.0",
            "gather, GB/s": "4.1", "gather / memcpy": "1.01", "gather / copy": "0.81", "fetch / copy": "0.50",
        }  # fmt: skip
        assert [first for first, *_ in rows] == ["SmolLM2's", "scattered clusters"]
        slower = row | {"load_share_of_memcpy": 0.7, "load_share_of_copy": 0.45}
        ((_, line),) = offload_tables.store_lines({"rows": [row, slower]})
        assert line == "0.70 to 1.01 of memcpy with one thread, 0.45 to 0.81 of torch's copy with all"

    def test_the_line_of_hit_rates_takes_the_smallest_budget(self):
        rows = [
            {"budget": budget, "recent_steps": steps, "hit_rate": budget / 1000 + steps / 10}
            for budget in (512, 256)
            for steps in (0, 1, 2, 4)
        ]
        part = {"clusters": {"tokens": 4096, "paper": {"1": 0.63, "2": 0.74}, "rows": rows}}
        ((label, rates),) = offload_tables.cache_lines(part)
        assert label.endswith("4,096 tokens, budget 256")
        assert rates == "R = 1: 0.36 (paper, 32k: 0.63), R = 2: 0.46 (paper, 32k: 0.74)"

    def test_cache(self):
        measured = {
            "hit_rate": 0.625, "group_hit_rate": 0.5, "sought_bytes": 8e3, "fetched_bytes": 3e3, "filled_bytes": 1e3,
        }  # fmt: skip
        clusters = [{"budget": 256, "recent_steps": steps, **measured} for steps in (0, 1)]
        block = {"policy": "lfu", "capacity_tokens": 4096, "blocks_a_step": 32, **measured}
        page = offload_tables.cache({
            "layers": (3, 15), "steps": 64, "clusters": {"tokens": 4096, "paper": {"1": 0.63}, "rows": clusters},
            "blocks": {
                "tokens": 8192, "budget": 0.1, "paper": (0.5, 0.6), "rows": [block],
                "step_cache": [{"recent_steps": 2, **measured}],
            },
        })  # fmt: skip
        by_cluster, by_block = cells(page)
        assert by_cluster[1:] == [
            ["256", "0", "0.62", "0.50", "", "8", "3"],
            ["256", "1", "0.62", "0.50", "0.63", "8", "3"],
        ]
        assert by_block[1:] == [
            ["LFU", "4,096", "32", "0.62", "8", "3", "1"],
            ["R=2", "", "", "0.62", "8", "3", "1"],
        ]

    def test_timeline(self):
        page = offload_tables.timeline({
            "method": "pqcache", "store": "host", "model": "a model", "tokens": 4096, "steps": 16, "budget": 512,
            "build_share_of_prefill": 0.25, "paper_build_share_of_prefill": (0.1, 0.3),
            "build_after_prefill_share": 0.05, "overlap_prefill": {"clustering": 0.9, "transfer": 0.8},
            "share_of_step": {"select": 0.125, "fetch": 0.0625},
            "moved_bytes_a_step": 2.5e6, "fetches_a_step": 30.0,
            "links": [{"label": "PCIe 4.0 x16", "bytes_per_s": 25e9, "predicted_s_a_step": 160e-6}],
        })  # fmt: skip
        shares, links = cells(page)
        assert [row[1] for row in shares[1:]] == ["0.25", "0.10–0.30", "0.05", "0.90", "0.80", "0.125", "0.062"]
        assert links[1:] == [["PCIe 4.0 x16", "25.0", "160"]]
        assert "A step moved 2.50 MB in 30 fetches." in page

    def test_each_is_among_the_long_tables(self):
        named = {name: tables.LONG[name] for name in ("timeline", "cache", "store")}
        assert [f for _, f in named.values()] == [offload_tables.timeline, offload_tables.cache, offload_tables.store]
        assert named["store"][0] == "Clusters fetched from host memory"
