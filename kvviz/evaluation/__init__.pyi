from .report import markdown as markdown
from .report import report as report
from .results import load_results as load_results
from .run import evaluate as evaluate
from .statistics import (
    differences as differences,
)
from .statistics import (
    orderings as orderings,
)
from .statistics import (
    perplexity_table as perplexity_table,
)
from .statistics import (
    summary as summary,
)
from .statistics import (
    wins as wins,
)
