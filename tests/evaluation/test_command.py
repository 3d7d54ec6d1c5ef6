"""The command `kvviz`: the calls that it makes, its refusals, and grids that resume after Ctrl-C and after a kill."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import click
import pandas as pd
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import kvviz
from kvviz.errors import InvalidInputError
from kvviz.evaluation import command, report
from kvviz.evaluation.example_cells import TIMES
from kvviz.tasks import Sample, Task, Turn
from kvviz.tasks.base import REGISTRY
from tests.tiny_models import letters_tokenizer, make

ROOT = Path(__file__).parents[2]
SAMPLES, METHODS, BUDGETS = 4, ("full", "streaming_llm", "snapkv"), ("80", "50%")
CELLS = SAMPLES * (1 + 2 * len(BUDGETS))


def without_times(table: pd.DataFrame) -> pd.DataFrame:
    return table.drop(columns=list(TIMES))


@dataclass
class Letters(Task):
    """A slow task that writes a line to a file for each scored answer."""

    title, source, metric = "letters", "here", "share"
    letter: str = "e"
    times: int = 1

    def sample(self, lm: kvviz.LanguageModel, length: int, index: int, seed: int) -> Sample:
        rng = self.drawn(length, index, seed)
        return Sample("".join(rng.choices("abcdefgh ", k=length - 2)), (Turn("?", ("e",), max_new_tokens=8),))

    def score(self, turn: Turn, text: str) -> float:
        if note := os.environ.get("LETTERS_SCORED"):
            with open(note, "a") as file:
                file.write("scored\n")
            time.sleep(0.2)
        return sum(letter < self.letter for letter in text) / max(len(text), 1)


@pytest.fixture
def letters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register `Letters` for one test; the registry is shared with all other tests."""
    monkeypatch.setattr(Letters, "name", "letters", raising=False)
    monkeypatch.setitem(REGISTRY, "letters", Letters)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    make("llama").save_pretrained(folder)
    letters_tokenizer().save_pretrained(folder)
    return folder


def arguments(model: Path, out: Path) -> list[str]:
    return [
        "evaluate", "--model", str(model), "--task", "letters:letter=a", "--length", "200", "--samples", str(SAMPLES),
        "--seed", "3", "--out", str(out), *(word for name in METHODS for word in ("--method", name)),
        *(word for budget in BUDGETS for word in ("--budget", budget)),
    ]  # fmt: skip


def run(*words: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(command.group(), list(words))
    return result.exit_code, result.stdout, result.stderr


@given(st.decimals(0, 1, places=4))
def test_a_share_and_its_percentage_are_the_same_budget(share: object) -> None:
    assert command.budget(f"{share * 100}%") == command.budget(str(share)) == float(share)


def test_budgets_and_tasks_are_read_as_written(letters: None) -> None:
    assert command.budget("128") == 128
    assert isinstance(command.budget("128"), int)
    assert command.task("letters") == Letters()
    read = command.task("letters:letter=a,b,times=5,placement=last")
    assert read == Letters(letter="a,b", times=5, placement="last")


def test_the_command_gives_the_same_as_the_function(letters: None, model: Path, tmp_path: Path) -> None:
    code, printed, errors = run(*arguments(model, tmp_path / "one.parquet"))
    assert (code, printed.count("\n")) == (0, 1 + len(METHODS)), errors
    lm, chosen = kvviz.load(model), [Letters(letter="a")]
    table = kvviz.evaluate(lm, chosen, METHODS, [80, 0.5], [200], SAMPLES, 3, tmp_path / "two.parquet")
    pd.testing.assert_frame_equal(without_times(kvviz.load_results(tmp_path / "one.parquet")), without_times(table))
    mean = table.groupby(["method", table["budget"].fillna(0)])["score"].mean()
    assert mean.nunique() > 2
    assert printed.splitlines()[0].split()[-3:] == ["any", "50%", "80"]
    for line, name, budgets in zip(
        printed.splitlines()[1:], sorted(METHODS), [(0,), (0.5, 80), (0.5, 80)], strict=True
    ):
        assert line.split() == ["letters", "after", "200", name, *(f"{mean[name, budget]:.3f}" for budget in budgets)]
    # The page has measured times too, so both come from one file.
    assert run("report", str(tmp_path / "one.parquet")) == (0, report(kvviz.load_results(tmp_path / "one.parquet")), "")


def test_all_names_every_method_once(monkeypatch: pytest.MonkeyPatch, letters: None) -> None:
    requested: list[list[str]] = []

    def evaluate(lm: str, tasks: list[Task], methods: list[str], *rest: object, hold: None) -> None:
        requested.append(methods)
        raise KeyboardInterrupt

    monkeypatch.setattr("kvviz.evaluation.evaluate", evaluate)
    words = ["--method", "quest", "--method", "all", "--method", "pqcache:official"]
    code, _, errors = run("evaluate", "--task", "letters", "--length", "9", *words)
    assert (code, errors.count("\n")) == (130, 1)
    assert "run the same command again to go on" in errors
    assert sorted(requested[0]) == sorted([*kvviz.methods.names(), "pqcache:official"])


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (["--method", "clusterk"], "did you mean 'clusterkv'"),
        (["--method", "pqcache:offical"], "'official'"),
        (["--task", "leters"], "'leters' (did you mean 'letters'?)"),
        (["--task", "letters:leter=a"], "did you mean 'letter'"),
        (["--task", "letters:letter"], "letters:field=value"),
        (["--budget", "half"], "'half'; wanted tokens (128)"),
        (["--budget", "150%"], "a share of the prompt in (0, 1)"),
        (["--length", "2000"], "at most the model's 1024 positions"),
        (["--model", "/no/model.gguf"], "no file /no/model.gguf"),
    ],
)
def test_a_refusal_is_one_line(letters: None, model: Path, tmp_path: Path, changed: list[str], message: str) -> None:
    options = {"--model": str(model), "--task": "letters", "--method": "quest", "--budget": "64", "--length": "200"}
    options |= {changed[0]: changed[1], "--out": str(tmp_path / "results.parquet")}
    code, printed, errors = run("evaluate", *(word for pair in options.items() for word in pair))
    assert (code, printed) == (2, "")
    assert message in errors.splitlines()[-1]  # transformers may have shown a progress bar first
    assert "Traceback" not in errors
    assert not list(tmp_path.iterdir())


def test_a_file_of_another_kind_is_left_alone(letters: None, model: Path, tmp_path: Path) -> None:
    other = tmp_path / "results.parquet"
    other.write_text("notes")
    code, _, errors = run(*arguments(model, other))
    assert (code, other.read_text()) == (2, "notes")
    assert "another kind of file" in errors


def test_a_report_of_no_file_is_refused(tmp_path: Path) -> None:
    code, printed, errors = run("report", str(tmp_path / "results.parquet"))
    assert (code, printed, errors.count("\n")) == (2, "", 1)
    assert "no file" in errors


def test_lists_are_the_tables_of_the_registries() -> None:
    assert run("methods") == (0, kvviz.methods.table() + "\n", "")
    assert run("tasks") == (0, kvviz.tasks.table() + "\n", "")


def test_help_loads_nothing_heavy_and_a_missing_click_is_named() -> None:
    lists = "print(*sys.modules)"
    start = "import sys; from kvviz.evaluation.command import main"
    code = f"{start}\ntry: main(['evaluate', '--help'])\nfinally: {lists}"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "transformers", "pandas", "numpy"} & set(process.stdout.split())
    code = "import sys; sys.modules['click'] = None; from kvviz.evaluation.command import main; main([])"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (process.returncode, process.stderr.count("\n")) == (2, 1)
    assert 'pip install "kvviz[evaluate]"' in process.stderr


@pytest.mark.slow
def test_a_grid_resumes_after_ctrl_c_and_after_a_kill(
    letters: None, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, scored = tmp_path / "results.parquet", tmp_path / "scored"
    # If tests run in the background of a shell, they and their subprocesses ignore Ctrl-C by default.
    code = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    code += "from tests.evaluation import test_command as here; from kvviz.evaluation import command\n"
    code += "here.Letters.name = 'letters'; here.REGISTRY['letters'] = here.Letters; command.main()"
    call = [sys.executable, "-c", code, *arguments(model, out)]
    monkeypatch.setenv("LETTERS_SCORED", str(scored))
    scored.touch()

    def stopped_by(number: signal.Signals) -> tuple[int, str]:
        before = len(scored.read_text().split())
        running = subprocess.Popen(call, cwd=ROOT, stderr=subprocess.PIPE, text=True)
        while len(scored.read_text().split()) < before + 3 and running.poll() is None:
            time.sleep(0.01)
        running.send_signal(number)
        _, errors = running.communicate()
        assert not out.exists()
        return running.returncode, errors

    status, errors = stopped_by(signal.SIGINT)
    assert status == 130
    assert "run the same command again to go on" in errors
    assert "Traceback" not in errors
    assert stopped_by(signal.SIGKILL)[0] == -signal.SIGKILL
    assert 0 < len(kvviz.load_results(out)) < CELLS
    code, _, errors = run(*arguments(model, out))
    assert code == 0, errors
    # No cell runs twice, except for the two that were interrupted.
    assert CELLS <= len(scored.read_text().split()) <= CELLS + 2
    monkeypatch.delenv("LETTERS_SCORED")
    whole = kvviz.evaluate(kvviz.load(model), [Letters(letter="a")], METHODS, [80, 0.5], [200], SAMPLES, 3)
    pd.testing.assert_frame_equal(without_times(kvviz.load_results(out)), without_times(whole))


def test_the_notes_of_an_error_are_on_its_line(capsys):
    error = InvalidInputError("score of task mine", 2.0, "a number from 0 to 1")
    error.add_note("In sample 3 of mine.")
    with pytest.raises(click.exceptions.Exit), command._one_line():
        raise error
    assert capsys.readouterr().err == f"Error: {error} In sample 3 of mine.\n"
