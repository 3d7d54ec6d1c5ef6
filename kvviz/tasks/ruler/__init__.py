"""RULER's thirteen tasks (arXiv 2404.06654), generated for a model's tokenizer, a length and a seed.

Names and constants are those of RULER's configuration (`scripts/synthetic.yaml` in its repository). Deviations:

- All wording and texts are ours. The prose and the words are from Python's reference manual, where RULER uses essays.
  The two question answering tasks use invented articles, where RULER uses SQuAD and HotpotQA.
- A sample fills its length to within about a sentence; answers come on top. "vt" and "cwe" have no solved example in
  front, since short prompts have no room for it.
- The maximum length of an answer is that of the correct one in this tokenizer and a few more tokens, not fixed.
"""

from .niah import NeedleTask
from .questions import OneHop, TwoHops
from .variable_tracking import VariableTracking
from .words import CommonWords, FrequentWords

__all__ = ["CommonWords", "FrequentWords", "NeedleTask", "OneHop", "TwoHops", "VariableTracking"]
