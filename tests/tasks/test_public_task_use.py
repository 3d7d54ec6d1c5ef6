"""Public datasets in use: in grids and on a real model, from the hub, and with invalid input."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
import zipfile

import datasets
import pytest

import kvviz
from kvviz import tasks
from kvviz.errors import IncompatibleFileError, InvalidInputError, KVVizError, MissingDependencyError, UnknownNameError
from kvviz.tasks.public import GSM8K, PG19, InfiniteBench, LongBench
from kvviz.tasks.public.forms import Form
from tests.tasks.test_public_tasks import TEXT, cache, longbench, problem, tiny, write  # noqa: F401  # two are fixtures
from tests.tiny_models import letters_tokenizer, make

NAMES = ("gsm8k", "infinitebench", "longbench", "pg19")
PROSE = "The boats lie in the harbour. It rains. The market opens at nine. "


@pytest.mark.slow
def test_a_grid_scores_the_models_answers(tmp_path):
    lm = kvviz.LanguageModel(make("llama", 1), letters_tokenizer(), "tiny")  # this model writes digits too
    questions, problems = tmp_path / "hotpotqa.jsonl", tmp_path / "test.jsonl"

    def run(answers, results):
        write(questions, [longbench(answers=[answer], context=TEXT * 2) for answer in answers])
        write(problems, [problem(answer=f"One step.\n#### {result}") for result in results])
        chosen = [LongBench(subset="hotpotqa", file=str(questions)), GSM8K(file=str(problems), max_new_tokens=60)]
        table = kvviz.evaluate(lm, chosen, ["full", "streaming_llm"], [64], [500], samples=2)
        assert sorted(set(table["task"])) == ["gsm8k", "longbench_hotpotqa"]
        assert sorted(set(table["metric"])) == ["final number right", "token F1"]
        assert len(table) == 8
        full = table[table["method"] == "full"].set_index(["task", "row"]).sort_index()
        return full.loc["longbench_hotpotqa"], full.loc["gsm8k"]

    read, solved = run(["nothing"] * 2, ["123456"] * 2)
    assert set(read["score"]) == set(solved["score"]) == {0}
    assert (read["dropped"] > 0).all()
    texts = [text.partition("Question:")[0] for text in solved["text"]]
    numbers = [re.findall(r"\d+", text)[-1] for text in texts]
    read_again, solved_again = run(list(read["text"]), numbers)  # now its answers are the right ones
    assert list(read_again["text"]) == list(read["text"])
    assert set(read_again["score"]) == set(solved_again["score"]) == {1}


@pytest.mark.slow
@pytest.mark.model
def test_a_real_model_finds_a_pass_key(lm, tmp_path):
    hidden = f"{PROSE * 4}The pass key is 71432. Remember it. 71432 is the pass key. {PROSE * 4}"
    row = {"context": hidden, "input": "What is the pass key?", "answer": ["71432"], "options": [], "id": 0}
    task = InfiniteBench(file=write(tmp_path / "passkey.jsonl", [row]))
    table = kvviz.evaluate(lm, [task], ["full"], [], [300], samples=1)
    assert table["score"].tolist() == [1]
    assert table["task"].tolist() == ["infinitebench_passkey"]


@pytest.mark.parametrize(
    ("task", "path", "name", "file", "split"),
    [
        (LongBench("last", "lcc"), "json", None, "zip://data/lcc.jsonl::hf://datasets/zai-org/LongBench/data.zip", 0),
        (InfiniteBench("last", "passkey"), "xinrongzhang2022/InfiniteBench", None, "passkey.jsonl", 0),
        (GSM8K(), "openai/gsm8k", "main", None, 1),
        (PG19(tokens=5), "emozilla/pg19-test", None, None, 1),
    ],
    ids=["longbench", "infinitebench", "gsm8k", "pg19"],
)
def test_the_hub_is_asked_for_data_only(tiny, monkeypatch, task, path, name, file, split):  # noqa: F811  # pytest's way to ask for it
    calls = []

    def no_network(*values, **fields):
        calls.append((values, fields))
        raise ConnectionError("Couldn't reach the hub\nand much more")

    monkeypatch.setattr(datasets, "load_dataset", no_network)
    with pytest.raises(KVVizError) as caught:
        task.sample(tiny, 900, 0, 0)
    assert re.search(
        r"from the hub: got ConnectionError: Couldn't reach the hub; wanted a connection; or download .*"
        rf"pass {type(task).__name__}\(.*file=", str(caught.value)
    )  # fmt: skip
    assert caught.value.__suppress_context__  # no traceback from the network libraries
    assert calls == [((path, name), {"data_files": file, "split": ("train", "test")[split]})]
    row = {**longbench(answer=["5"]), **problem(), "text": TEXT * 9}
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: datasets.Dataset.from_list([row]))
    assert task.sample(tiny, 900, 0, 0).details["row"] == 0


def test_bad_input_is_refused_with_a_way_out(tiny, tmp_path):  # noqa: F811  # pytest's way to ask for it
    def file(name, content):
        (tmp_path / name).write_bytes(content)
        return str(tmp_path / name)

    def sample(task):
        return lambda: task.sample(tiny, 900, 0, 0)

    with zipfile.ZipFile(tmp_path / "other.zip", "w") as archive:
        archive.writestr("data/other.jsonl", "{}")
    answers = {"none": None, "prose": "It is 4.", "word": "It is 4.\n#### four", "bare": "#### 4"}
    broken = {name: GSM8K(file=write(tmp_path / f"{name}.jsonl", [{"question": "?", "answer": answer}]))
              for name, answer in answers.items()}  # fmt: skip
    good = write(tmp_path / "good.jsonl", [problem()])
    columns = write(tmp_path / "columns.parquet", [{"inputs": "a", "context": "b", "answers": ["c"]}])
    choice = write(tmp_path / "choice.jsonl", [longbench(answer="five", options=["one", "two"])])
    for error, ask, message in (
        (UnknownNameError, lambda: tasks.create("longbench", subset="qaspr"), "subset: got 'qaspr'.*mean 'qasper'"),
        (UnknownNameError, lambda: tasks.create("infinitebench", subset="pass_key"), "did you mean 'passkey'"),
        (UnknownNameError, lambda: tasks.create("longbensh"), "did you mean 'longbench'"),
        (UnknownNameError, lambda: Form("token-F1", 9, ""), "metric: got 'token-F1'.*did you mean 'token F1'"),
        (UnknownNameError, sample(LongBench(file=columns)), "column: got 'input'.*did you mean 'inputs'"),
        (UnknownNameError, lambda: LongBench(subset="lcc", file=str(tmp_path)), "got 'lcc'.*one of bare, choice, col"),
        (
            InvalidInputError,
            lambda: GSM8K(file=str(tmp_path / "gone.jsonl")),
            "gone.jsonl, which does.*to get one, download",
        ),
        (InvalidInputError, lambda: GSM8K(file=str(tmp_path / "other.zip")), "ends with .jsonl or .json or .parquet$"),
        (InvalidInputError, lambda: GSM8K(shots=0), "shots: got 0"),
        (InvalidInputError, lambda: PG19(tokens=0), "^pg19: tokens: got 0"),
        (InvalidInputError, lambda: PG19(placement="last"), "^pg19: placement: .*there is no question"),
        (InvalidInputError, lambda: PG19().sample(tiny, 1, 0, 0), "at least 2 tokens"),
        (InvalidInputError, lambda: GSM8K(file=good).sample(tiny, 20, 0, 0), "20 tokens; wanted at least"),
        (IncompatibleFileError, sample(broken["none"]), "column 'answer': got NoneType"),
        (IncompatibleFileError, sample(broken["prose"]), "got 'It is 4.'; wanted steps, then ####"),
        (IncompatibleFileError, sample(broken["word"]), "wanted steps, then ####"),
        (IncompatibleFileError, sample(broken["bare"]), "wanted steps, then ####"),
        (IncompatibleFileError, sample(InfiniteBench("last", "code_debug", choice)), "one of the options"),
        (IncompatibleFileError, sample(GSM8K(file=file("cut.jsonl", b'{"question": "?", "an'))), "cut.jsonl: got"),
        (IncompatibleFileError, sample(GSM8K(file=file("empty.jsonl", b""))), "empty.jsonl: got no rows"),
        (IncompatibleFileError, sample(GSM8K(file=file("no.parquet", b"PAR1 no PAR1"))), "no.parquet: got"),
        (IncompatibleFileError, sample(LongBench(file=file("no.zip", b"PK\3\4"))), "no.zip: got BadZipFile"),
        (IncompatibleFileError, sample(LongBench(file=str(tmp_path / "other.zip"))), "data/qasper.jsonl"),
    ):
        with pytest.raises(error, match=message):
            ask()


@pytest.mark.parametrize(
    ("module", "package", "make_task"),
    [
        ("datasets", "datasets", GSM8K), ("datasets", "datasets", PG19),
        ("rouge_score", "rouge-score", lambda: LongBench(subset="gov_report")),
        ("rapidfuzz", "rapidfuzz", lambda: LongBench(subset="lcc")),
    ],
)  # fmt: skip
def test_a_missing_package_is_named_before_anything_runs(monkeypatch, module, package, make_task):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == module else find(name, *rest))
    with pytest.raises(MissingDependencyError, match=rf"'{package}'; wanted it installed: pip install \"kvviz\[data\]"):
        make_task()


@pytest.mark.slow
def test_tasks_are_listed_without_loading_their_libraries():
    code = (
        "import json, sys, kvviz.tasks as tasks; listed = tasks.names(), tasks.table()\n"
        "tasks.create('longbench', subset='gov_report'); print(json.dumps([*listed, list(sys.modules)]))"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    names, table, loaded = json.loads(process.stdout)
    assert set(NAMES) <= set(names)
    assert all(f"| `{name}` |" in table for name in NAMES)
    assert "| by subset | 0 to 0.25 | arXiv 2402.13718 |" in table, "InfiniteBench: one of four answers"
    assert "| by subset | 0 to 0.033 | arXiv 2308.14508 |" in table, "LongBench: one of 30 paragraphs, or of 50 types"
    assert "kvviz.tasks.public.gsm8k" in loaded
    assert not {"datasets", "rouge_score", "rapidfuzz"} & set(loaded)
