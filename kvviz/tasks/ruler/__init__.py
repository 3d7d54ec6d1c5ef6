"""RULER's thirteen tasks (arXiv 2404.06654), made anew for a model's tokenizer, a length and a seed.

Names and constants are those of RULER's own configuration (`scripts/synthetic.yaml` of its repository). What differs:

- All wording and all texts are kvviz's own. The prose is Python's reference manual, where RULER has essays; words come
  from it too; the two question answering tasks ask about invented articles, where RULER has SQuAD and HotpotQA.
- A sample fills its length to within a sentence or so, and answers come on top of it; no solved example is put in
  front of "vt" and "cwe", for which short prompts have no room.
- An answer may take as many tokens as the right one has in this tokenizer and a few more, not a fixed number.
"""

from .niah import NeedleTask
from .questions import OneHop, TwoHops
from .variable_tracking import VariableTracking
from .words import CommonWords, FrequentWords

__all__ = ["CommonWords", "FrequentWords", "NeedleTask", "OneHop", "TwoHops", "VariableTracking"]
