"""Public datasets as tasks, on small files in their schemas; no test needs the network."""

from __future__ import annotations

import json
import re
import zipfile

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import kvviz
from kvviz.errors import InvalidInputError
from kvviz.tasks.prompts import count_tokens, render
from kvviz.tasks.public import GSM8K, PG19, InfiniteBench, LongBench, rows
from tests.tiny_llama import byte_level, tiny_llama
from tests.tiny_models import letters_tokenizer, make

TEXT = "".join(f"<{number}>" for number in range(60))  # every part shows its position
SHOTS = "Question: Who is it?\nType:"
# metric, new tokens, whether the prompt has the row's input: as in the papers and their configurations
LONGBENCH = {
    "narrativeqa": ("token F1", 128, True), "qasper": ("token F1", 128, True),
    "multifieldqa_en": ("token F1", 64, True), "hotpotqa": ("token F1", 32, True), "2wikimqa": ("token F1", 32, True),
    "musique": ("token F1", 32, True), "gov_report": ("ROUGE-L", 512, False), "qmsum": ("ROUGE-L", 512, True),
    "multi_news": ("ROUGE-L", 512, False), "trec": ("class found", 64, True), "triviaqa": ("token F1", 32, True),
    "samsum": ("ROUGE-L", 128, True), "passage_count": ("right numbers", 32, False),
    "passage_retrieval_en": ("right numbers", 32, True), "lcc": ("edit similarity of a line", 64, False),
    "repobench-p": ("edit similarity of a line", 64, True),
}  # fmt: skip
INFINITEBENCH = {
    "passkey": ("first number", 6, True), "number_string": ("first number", 12, True),
    "kv_retrieval": ("words found", 50, True), "longbook_qa_eng": ("token F1", 40, True),
    "longbook_choice_eng": ("letter chosen", 40, True), "longbook_sum_eng": ("ROUGE-L", 1200, False),
    "longdialogue_qa_eng": ("words found", 40, False), "code_debug": ("letter chosen", 5, False),
}  # fmt: skip
ANSWERS = {"right numbers": "Paragraph 17", "first number": "71432", "class found": "Person", "letter chosen": "two"}
EXPERIMENTS = [(LongBench, name, *of) for name, of in LONGBENCH.items()] + [
    (InfiniteBench, name, *of) for name, of in INFINITEBENCH.items()
]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """Use a temporary cache folder for `datasets`."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()
    rows._from_hub.cache_clear()


@pytest.fixture(scope="module")
def tiny():
    """A model whose tokens are bytes, without a chat template."""
    return kvviz.LanguageModel(tiny_llama(), byte_level(), "tiny")


def write(file, table):
    if file.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(table), file)
    else:
        file.write_text("".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in table))
    return str(file)


def longbench(number=0, **other):
    row = {"input": SHOTS, "context": TEXT, "answers": ["a green cat", "cat"], "length": 9, "dataset": "",
           "language": "en", "all_classes": ["Person", "Personal date"], "_id": str(number)}  # fmt: skip
    return {**row, **other}


def problem(number=0, answer=None):
    return {"question": f"What is {number} + 1?", "answer": answer or f"It is <<1>> one more.\n#### {number + 1:,}"}


@pytest.mark.parametrize(("kind", "subset", "metric", "most", "asked"), EXPERIMENTS)
def test_every_subset_has_prompts_and_scores(tiny, tmp_path, kind, subset, metric, most, asked):
    answer = ANSWERS.get(metric, "a green cat")
    row = longbench(answers=[answer]) if kind is LongBench else longbench(answer=[answer], options=["one", "two", "3"])
    task = kind(subset=subset, file=write(tmp_path / "rows.jsonl", [row]), placement="last")
    sample = task.sample(tiny, 2000, 0, 0)
    (turn,) = sample.turns
    room = len(answer) + 4 if metric in ("first number", "words found") else 0  # this tokenizer has single bytes
    assert (task.name, task.metric, turn.max_new_tokens) == (f"{kind.name}_{subset}", metric, max(most, room))
    prompt = render(tiny, sample, "last").text
    before, between = prompt.split(TEXT)
    assert before.strip()
    assert sample.context.endswith(TEXT)
    assert ("Who is it?" in between) == asked
    assert prompt.endswith(turn.opening or "\n")
    assert sample.details == {"row": 0, "dropped": 0}
    if metric == "letter chosen":
        assert "A. one\nB. two\nC. 3" in between
    right = {"right numbers": " 17.", "letter chosen": " B."}.get(metric, answer)
    assert task.score(turn, right) == 1
    assert task.score(turn, "5") == 0


def test_prompts_of_few_shot_rows_end_with_the_last_line_of_the_input(tiny, tmp_path):
    file = write(tmp_path / "rows.jsonl", [longbench(answers=["Person"])])
    task = LongBench(subset="trec", file=file, placement="last")
    sample = task.sample(tiny, 2000, 0, 0)
    assert render(tiny, sample, "last").text.endswith(f"{TEXT}\n\nQuestion: Who is it?\nType:")
    prompt = render(tiny, sample, "after")
    assert (prompt.text, prompt.turns) == (sample.context, ("\n\nQuestion: Who is it?\nType:",))
    assert task.score(sample.turns[0], "\nPerson\nQuestion: When?\nType: Personal date") == 1  # another example
    assert task.score(sample.turns[0], "Personal date") == 1 / 2


def test_long_texts_are_cut_in_the_middle(tiny, tmp_path):
    texts = [TEXT, "naïve café über Straße " * 20]
    file = write(tmp_path / "rows.jsonl", [longbench(context=text) for text in texts])
    task = LongBench(subset="qasper", file=file)
    uncut = [task.sample(tiny, 4000, index, 0) for index in range(2)]
    least = [count_tokens(tiny, sample, "after") - len(texts[sample.details["row"]].encode()) for sample in uncut]

    @given(st.integers(0, 1), st.integers(1, 600))
    @settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
    def check(index, room):
        text = texts[uncut[index].details["row"]].encode()
        lead = uncut[index].context.removesuffix(text.decode())
        sample = task.sample(tiny, least[index] + room, index, 0)
        kept = len(text) - sample.details["dropped"]
        assert min(room, len(text)) <= kept <= room + 2  # a cut letter leaves room for its bytes
        assert count_tokens(tiny, sample, "after") <= least[index] + room
        ends = (text[: kept - kept // 2], text[len(text) - kept // 2 :]) if kept < len(text) else (text,)
        assert sample.context == lead + "".join(end.decode(errors="ignore") for end in ends)

    check()
    with pytest.raises(InvalidInputError, match=f"wanted at least {least[0] + 1} tokens"):
        task.sample(tiny, least[0], 0, 0)


def test_all_kinds_of_files_give_the_same_rows(tiny, tmp_path):
    table = [longbench(number, context=f"text {number}") for number in range(7)]
    folder = tmp_path / "data"
    folder.mkdir()
    text = write(folder / "qasper.jsonl", table)
    with zipfile.ZipFile(tmp_path / "data.zip", "w") as archive:
        archive.write(text, "data/qasper.jsonl")
    shards = tmp_path / "shards [1]"  # the brackets are not a pattern
    shards.mkdir()
    write(shards / "qasper-0.parquet", table[:3])
    write(shards / "qasper-1.parquet", table[3:])
    write(shards / "hotpotqa.parquet", table[:1])
    files = [text, folder, tmp_path / "data.zip", write(tmp_path / "one.parquet", table), shards]
    orders = set()
    for seed in range(3):
        several = [
            [LongBench(file=str(file)).sample(tiny, 900, index, seed) for index in range(7)] for file in files
        ]  # fmt: skip
        assert all(samples == several[0] for samples in several)
        order = [sample.details["row"] for sample in several[0]]
        assert sorted(order) == list(range(7))
        assert all(sample.context.endswith(f"text {row}") for sample, row in zip(several[0], order, strict=True))
        orders.add(tuple(order))
    assert len(orders) == 3
    write(folder / "qasper.jsonl", table[:1])  # the changed file is read again
    with pytest.raises(InvalidInputError, match="got number 1; wanted less than 1, its rows"):
        LongBench(file=text).sample(tiny, 900, 1, 0)


def test_rows_stay_on_disk(tiny, tmp_path, monkeypatch):
    task = GSM8K(file=write(tmp_path / "test.parquet", [problem(number) for number in range(10_000)]))
    table = rows.read(rows.Source("", "", (), "", ""), task.file)
    assert table.num_rows == 10_000
    assert table.cache_files  # memory-mapped
    read_rows = []
    read = datasets.Dataset.__getitem__
    monkeypatch.setattr(datasets.Dataset, "__getitem__", lambda self, key: read_rows.append(key) or read(self, key))
    monkeypatch.setattr(datasets.Dataset, "__iter__", lambda self: pytest.fail("all rows are read"))
    samples = [task.sample(tiny, 900, index, 5) for index in range(3)]
    assert read_rows == [sample.details["row"] for sample in samples]
    assert [f"What is {row} + 1?" in sample.turns[0].question for row, sample in zip(read_rows, samples, strict=True)]
    assert [sample.turns[0].answers for sample in samples] == [(str(row + 1),) for row in read_rows]


def test_worked_examples_are_right_and_fill_the_length(tiny, tmp_path):
    task = GSM8K(file=write(tmp_path / "test.jsonl", [problem(number) for number in range(9)]))
    templates = set()
    for index in range(9):
        sample = task.sample(tiny, 2500, index, 1)
        lead, *examples = sample.context.split("Question: ")
        assert (lead, len(examples)) == ("Answer each question step by step.\n\n", sample.details["shots"])
        for example in examples:
            question, steps = example.strip().split("\nAnswer: ")
            for terms, result in re.findall(r"((?:\(?\d+\)? [-+*/] )+\(?\d+(?: \+ \d+\))?) = (\d+)", steps):
                assert eval(terms) == int(result)
            last, answer = re.findall(r"(\d+)(?=[^\d]*\. The answer is (\d+)\.$)", steps)[0]
            assert last == answer
            templates.add(re.sub(r"\d+|\b[A-Z]\w+", "", question))
        assert 2500 - 300 <= count_tokens(tiny, sample, "after") <= 2500  # there is no room for another example
        (turn,) = sample.turns
        assert task.score(turn, f" 3 * 4 = 12. The answer is {turn.answers[0]}.\n\nQuestion: 5? The answer is 8.") == 1
        assert task.score(turn, " It is 77.") == 0
    assert len(templates) == 8
    assert GSM8K(file=task.file, shots=2).sample(tiny, 2500, 0, 1).details["shots"] == 2


def test_samples_are_windows_of_books(tmp_path):
    lm = kvviz.LanguageModel(make("llama"), letters_tokenizer(), "tiny")
    books = [{"text": "".join(chr(97 + place * step % 26) for place in range(300))} for step in (1, 3)]
    task = PG19(file=write(tmp_path / "books.jsonl", books), tokens=9)
    samples = [task.sample(lm, 100, index, 2) for index in range(6)]
    assert [sample.details["row"] for sample in samples] == [samples[0].details["row"], samples[1].details["row"]] * 3
    assert len({tuple(sample.details.values()) for sample in samples}) == 6
    for sample in samples:
        ((answer,),) = (turn.answers for turn in sample.turns)
        start = sample.details["start"]
        assert books[sample.details["row"]]["text"][start:].startswith(sample.context + answer)
        assert (len(sample.context), len(answer)) == (100, 9)
