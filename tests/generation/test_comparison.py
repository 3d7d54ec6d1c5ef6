"""The table of compare(): its recordings after pandas operations, and the cells that it shares with evaluate()."""

from __future__ import annotations

import copy
import pickle
import warnings
from dataclasses import asdict

import numpy as np
import pandas as pd
import pytest

import kvviz
from kvviz.evaluation.grid import cells
from kvviz.generation.comparison import Comparison
from kvviz.generation.method_cells import method_cells
from kvviz.trace.styles import style_of
from notebooks.runs import files
from tests.tiny_models import letters_tokenizer, make, prompt

KEYS = [("full", 120), ("quest", 48), ("quest", 60), ("few", 48), ("few", 60)]


@pytest.fixture(scope="module")
def tiny():
    return kvviz.LanguageModel(make("llama"), letters_tokenizer(), name="tiny-llama")


def compared(lm, **options):
    few = kvviz.methods.create("clusterkv", sinks=4, n_clusters=8, dense_layers=0)
    methods = {"full": "full", "quest": "quest", "few": few}
    return kvviz.compare(lm, prompt(120), methods, [48, 0.5], max_new_tokens=4, answer="e", **options)


@pytest.fixture(scope="module")
def table(tiny):
    return compared(tiny)


class TestRecordings:
    def test_each_row_has_its_recording(self, table):
        assert isinstance(table, pd.DataFrame)
        assert list(table.recordings) == KEYS
        for row in table.itertuples():
            recording = table.recordings[row.method, row.budget]
            assert (recording.budget, recording.answer) == (row.budget, row.text)
            if recording.layers:
                assert recording.summary()["recall"] == row.recall
                assert recording.ledgers.keys() == recording.events.keys()

    @pytest.mark.parametrize(
        ("change", "keys"),
        [
            (lambda table: table[table.method == "few"], KEYS[3:]),
            (lambda table: table.query("budget == 48"), [KEYS[1], KEYS[3]]),
            (lambda table: table.iloc[1:2], KEYS[1:2]),
            (
                lambda table: table.sort_values(["budget", "method"], ascending=False),
                [KEYS[i] for i in (0, 2, 4, 1, 3)],
            ),
            (lambda table: table.set_index("method").loc[["quest"]], KEYS[1:3]),
            (lambda table: table.set_index(["method", "budget"]), KEYS),
            (lambda table: table.groupby("method", sort=False).head(1), [KEYS[0], KEYS[1], KEYS[3]]),
            (lambda table: table.assign(more=1).round(2).rename(columns={"recall": "r"}), KEYS),
            (lambda table: table[["recall", "text"]], KEYS),
            (lambda table: table.copy(), KEYS),
            (copy.deepcopy, KEYS),
        ],
    )
    def test_they_are_those_of_the_remaining_rows(self, table, change, keys):
        changed = change(table)
        assert isinstance(changed, Comparison)
        assert list(changed.recordings) == keys
        assert all(changed.recordings[key] is table.recordings[key] for key in keys), "shared, not copied"

    def test_they_are_pickled_with_the_table(self, table):
        unpickled = pickle.loads(pickle.dumps(table))
        assert list(unpickled.recordings) == KEYS
        original, copied = (one_table.recordings["quest", 48].indices(2, 3) for one_table in (table, unpickled))
        assert np.array_equal(original, copied)

    def test_a_table_made_of_several_has_none(self, table):
        for combined in (pd.concat([table, table]), table.merge(table, on="method")):
            with pytest.raises(kvviz.InvalidInputError, match="made of several tables; wanted a table that"):
                _ = combined.recordings
        assert not hasattr(pd.DataFrame(table), "recordings")

    def test_the_attrs_can_be_saved(self, table, tmp_path):
        styles = {name: asdict(style_of(name)) for name in ("full", "quest", "clusterkv")}
        assert table.attrs == {"model": "tiny-llama", "prompt_length": 120, "styles": styles, "hold": "tokens"}
        files.write_table(tmp_path / "table.json", table.drop(columns="correct"))
        assert files.read_table(tmp_path / "table.json").equals(pd.DataFrame(table.drop(columns="correct")))
        assert "few</td>" in table._repr_html_()

    def test_they_can_be_left_out(self, tiny, table):
        without = compared(tiny, recordings=False)
        assert without[["method", "budget", "recall"]].equals(table[["method", "budget", "recall"]])
        with pytest.raises(kvviz.InvalidInputError, match="recordings=False"):
            _ = without.recordings

    def test_a_dict_still_gets_them_with_a_warning(self, tiny):
        recordings = {}
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", DeprecationWarning)
            table = compared(tiny, recordings=recordings)
        assert list(recordings) == list(table.recordings) == KEYS
        (warned,) = [warning for warning in caught if "recordings" in str(warning.message)]
        assert warned.category is DeprecationWarning
        assert "compare(...).recordings" in str(warned.message)
        assert warned.filename == __file__, "the line to be changed"


class TestCells:
    def test_compare_accepts_presets_by_name_like_evaluate(self, tiny):
        table = kvviz.compare(tiny, prompt(120), ["pqcache:official", "pqcache"], [48], max_new_tokens=2)
        assert table["method"].tolist() == ["pqcache:official", "pqcache"]
        official = kvviz.methods.create("pqcache", preset="official", budget=48)
        assert (
            table.recordings["pqcache:official", 48].config == official.config != table.recordings["pqcache", 48].config
        )
        (cell,) = cells(["pqcache:official"], [48])
        assert (cell.method, cell.name, cell.preset) == (official, "pqcache", "official")

    @pytest.mark.parametrize(
        ("methods", "budgets", "message"),
        [
            ([], [48], "methods: got none; wanted at least one"),
            ("quest", [48], "methods: got 'quest'; wanted a list"),
            ([None], [48], "methods: got NoneType; wanted a name"),
            (["quest", "quest"], [48], "methods: got 'quest' twice; wanted a mapping of labels"),
            (["quest:official", "quest:official"], [48], "methods: got 'quest:official' twice"),
            (["quest"], 48, "budgets: got 48; wanted a list"),
            (["quest"], [48, 1.5], "budgets: got 1.5"),
            (["quest"], [True], "budgets: got True"),
        ],
    )
    def test_both_refuse_the_same_input(self, tiny, methods, budgets, message):
        with pytest.raises(kvviz.InvalidInputError, match=f"^compare: {message}"):
            kvviz.compare(tiny, prompt(120), methods, budgets, max_new_tokens=2)
        with pytest.raises(kvviz.InvalidInputError, match=f"^evaluate: {message}"):
            cells(methods, budgets)

    @pytest.mark.parametrize("name", ["quest:papr", "qest"])
    def test_both_suggest_a_name_for_an_unknown_one(self, tiny, name):
        for call in (lambda: kvviz.compare(tiny, prompt(120), [name], [48]), lambda: cells([name], [48])):
            with pytest.raises(kvviz.UnknownNameError, match="did you mean"):
                call()

    def test_a_refused_budget_is_an_error_of_compare_and_a_row_of_evaluate(self, tiny):
        with pytest.raises(kvviz.InvalidInputError, match="clusterkv: budget: got 4 tokens"):
            kvviz.compare(tiny, prompt(120), ["clusterkv"], [48, 4])
        assert [cell.refused != "" for cell in cells(["clusterkv"], [48, 4])] == [False, True]

    def test_a_method_that_ignores_the_budget_has_one_cell(self):
        classes = {name: kvviz.methods.get(name) for name in kvviz.methods.names()}
        ignoring = {name for name, method in classes.items() if method.ignores_budget}
        assert ignoring == {"full", "minference", "kivi", "turboquant", "duo_attention"}
        cells_of_methods = method_cells("test", ["full", "minference", "quest"], [48, 64])
        assert [(cell.label, cell.budget) for cell in cells_of_methods] == [
            ("full", None), ("minference", None), ("quest", 48), ("quest", 64),
        ]  # fmt: skip

    def test_budgets_of_equally_many_tokens_are_refused(self, tiny):
        with pytest.raises(kvviz.InvalidInputError, match="two that are 60 tokens of this prompt"):
            kvviz.compare(tiny, prompt(120), ["quest"], [60, 0.5])
