"""LongBench: question answering, summaries, few-shot learning, retrieval and code on long texts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ..base import Turn
from ..scores import class_found
from . import rows
from .forms import CLASS, F1, LINE, NUMBERS, ROUGE, Form
from .subsets import SubsetTask

if TYPE_CHECKING:
    from ...models import LanguageModel

BRIEFLY = "Give the answer alone, in as few words as will do."
ARTICLE = (
    'Where the article does not tell, the answer is "unanswerable"; where it is a yes-or-no question, "yes" or "no".'
)
SUMMARY = "Sum it up on about one page."


def _passages(max_new_tokens: int = 32) -> Form:
    lead = "Here are several passages, which hold the answer to a question.\n\n"
    return Form(F1, max_new_tokens, lead, f"Question on the passages: {{input}}\n{BRIEFLY}", "Answer:")


FORMS = {
    "narrativeqa": Form(
        F1, 128, "Here is a story, a book or a film script.\n\n",
        f"Question on the story: {{input}}\n{BRIEFLY}", "Answer:",
    ),
    "qasper": Form(
        F1, 128, "Here is a scientific article.\n\n",
        f"Question on the article: {{input}}\n{BRIEFLY} {ARTICLE}", "Answer:",
    ),
    "multifieldqa_en": Form(F1, 64, "Here is a text.\n\n", f"Question on the text: {{input}}\n{BRIEFLY}", "Answer:"),
    "hotpotqa": _passages(),
    "2wikimqa": _passages(),
    "musique": _passages(),
    "gov_report": Form(ROUGE, 512, "Here is a report of a government agency.\n\n", SUMMARY, "Summary:"),
    "qmsum": Form(
        ROUGE, 512, "Here is what was said in a meeting.\n\n",
        "On this meeting: {input}\nAnswer in a few sentences.", "Answer:",
    ),
    "multi_news": Form(ROUGE, 512, "Here are several news articles.\n\n", SUMMARY, "Summary:"),
    "trec": Form(
        CLASS, 64, "Here are questions, each with its type. Give the type of the last one.\n\n",
        chance=1 / 50, first_line=True,
    ),  # 50 types
    "triviaqa": Form(
        F1, 32, f"Here are passages with questions and answers. Answer the last question. {BRIEFLY}\n\n",
        first_line=True,
    ),
    "samsum": Form(ROUGE, 128, "Here are dialogues, each with a summary. Sum up the last one.\n\n", first_line=True),
    "passage_count": Form(
        NUMBERS, 32, "Here are paragraphs, some of which occur more than once.\n\n",
        "How many different paragraphs are there? Give the number alone.", "Different paragraphs in all:",
    ),
    "passage_retrieval_en": Form(
        NUMBERS, 32, "Here are 30 numbered paragraphs.\n\n",
        "This is the abstract of one of them:\n\n{input}\n\nWhich one? Give its number alone.",
        "It is the abstract of paragraph", chance=1 / 30,
    ),
    "lcc": Form(LINE, 64, "Here is the beginning of a program.\n\n", "Write its next line.", "Next line of code:\n"),
    "repobench-p": Form(
        LINE, 64, "Here are parts of a repository, and the beginning of one of its files.\n\n",
        "{input}\n\nWrite the next line.", "Next line of code:\n",
    ),
}  # fmt: skip
# The names of the tasks in results, and the category of each, as in LongBench's table of subsets.
CATEGORIES = {
    f"longbench_{subset}": category
    for category, subsets in {
        "single-document QA": ("narrativeqa", "qasper", "multifieldqa_en"),
        "multi-document QA": ("hotpotqa", "2wikimqa", "musique"),
        "summarization": ("gov_report", "qmsum", "multi_news"),
        "few-shot learning": ("trec", "triviaqa", "samsum"),
        "synthetic tasks": ("passage_count", "passage_retrieval_en"),
        "code completion": ("lcc", "repobench-p"),
    }.items()
    for subset in subsets
}


@dataclass(frozen=True)
class Classified(Turn):
    """A turn whose answer is one of `classes`."""

    classes: tuple[str, ...] = ()


@dataclass
class LongBench(SubsetTask):
    """One English or code subset of LongBench, with its own metric; in results it is called "longbench_" + subset.

    `file`: a .jsonl or .parquet file in LongBench's schema (columns input, context, answers and all_classes), the
    dataset's data.zip, or the directory it unpacks to. Without it, data.zip is read from the hub (zai-org/LongBench),
    since neither `datasets` 4 and later nor kvviz run the dataset's loading script. A file of LongBench-E, such as
    qasper_e.jsonl, is read by its name.

    If the prompt would be longer than `length`, the middle of the text is cut out (`details`: `dropped` tokens; `row`);
    shorter texts stay shorter. The five Chinese subsets are left out: ROUGE-L and F1 need Chinese word segmentation.

    Source: LongBench (arXiv 2308.14508) for the subsets, metrics, order of the prompt's parts and maximum length of
    answers. The wording is ours. Every subset uses the model's chat template, which LongBench does not use for few-shot
    examples and code.

    Raises the errors of `SubsetTask`.
    """

    name: ClassVar[str] = "longbench"
    title: ClassVar[str] = "LongBench: one of its 16 English and code subsets"
    source: ClassVar[str] = "arXiv 2308.14508"
    metric: ClassVar[str] = "by subset"

    forms = FORMS

    subset: str = "qasper"

    @property
    def where(self) -> rows.Source:
        """The file in data.zip, on the hub."""
        advice = (
            "download data.zip from the dataset zai-org/LongBench on the Hugging Face hub and pass "
            f'LongBench(subset="{self.subset}", file="data.zip")'
        )
        columns = ("input", "context", "answers", *(["all_classes"] if self.form.metric == CLASS else []))
        inside = f"data/{self.subset}.jsonl"
        hub = f"zip://{inside}::hf://datasets/zai-org/LongBench/data.zip"
        return rows.Source(
            "LongBench", self.subset, columns, advice, "json", data_files=hub, split="train", inside=inside
        )

    def turn(self, lm: LanguageModel, row: rows.Row) -> Turn:
        """The question of a row; with all classes if the answer is a class."""
        question, opening = self.form.asked(rows.text(row, "input"))
        answers, most = rows.texts(row, "answers"), self.form.max_new_tokens
        if self.form.metric == CLASS:
            return Classified(question, answers, opening, most, rows.texts(row, "all_classes"))
        return Turn(question, answers, opening, most)

    def score(self, turn: Turn, text: str) -> float:
        """The subset's metric, from 0 to 1; the best of several correct answers counts."""
        if self.form.first_line:
            text = text.lstrip("\n").partition("\n")[0]
        if isinstance(turn, Classified):
            return class_found(text, turn.answers, turn.classes)
        return super().score(turn, text)
