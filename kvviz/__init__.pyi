from . import (
    cache as cache,
)
from . import (
    clustering as clustering,
)
from . import (
    errors as errors,
)
from . import (
    evaluation as evaluation,
)
from . import (
    generation as generation,
)
from . import (
    kernels as kernels,
)
from . import (
    methods as methods,
)
from . import (
    metrics as metrics,
)
from . import (
    models as models,
)
from . import (
    offload as offload,
)
from . import (
    plots as plots,
)
from . import (
    tasks as tasks,
)
from . import (
    trace as trace,
)
from . import (
    widgets as widgets,
)
from .cache.attachment import attach as attach
from .cache.attachment import detach as detach
from .cache.selective_cache import SelectiveCache as SelectiveCache
from .errors import (
    CacheMismatchError as CacheMismatchError,
)
from .errors import (
    DamagedOffloadError as DamagedOffloadError,
)
from .errors import (
    IncompatibleFileError as IncompatibleFileError,
)
from .errors import (
    InvalidInputError as InvalidInputError,
)
from .errors import (
    KVVizError as KVVizError,
)
from .errors import (
    MissingDependencyError as MissingDependencyError,
)
from .errors import (
    OutOfSpaceError as OutOfSpaceError,
)
from .errors import (
    UnknownNameError as UnknownNameError,
)
from .errors import (
    UnsupportedModelError as UnsupportedModelError,
)
from .evaluation import evaluate as evaluate
from .evaluation import load_results as load_results
from .generation.calibrating import calibrated_squeezed_attention as calibrated_squeezed_attention
from .generation.capturing import capture as capture
from .generation.comparing import compare as compare
from .generation.diagnosing import diagnose as diagnose
from .generation.generating import generate as generate
from .generation.inspecting import inspect as inspect
from .generation.inspection import Inspection as Inspection
from .generation.replaying import replay as replay
from .generation.repository import open_runs as open_runs
from .generation.result import Generation as Generation
from .generation.retrieval_heads import find_retrieval_heads as find_retrieval_heads
from .generation.teacher_forcing import score as score
from .methods import Method as Method
from .methods import Selection as Selection
from .metrics.byte_budgets import bytes as bytes
from .models import LanguageModel as LanguageModel
from .models import load as load
from .trace import Geometry as Geometry
from .trace import Recording as Recording
from .trace import Timeline as Timeline
from .trace import Trace as Trace
from .trace.diagnosis import Diagnosis as Diagnosis
from .trace.edits import Edit as Edit
from .trace.edits import drop as drop
from .trace.edits import exact as exact
from .trace.edits import group as group
from .trace.edits import only as only
from .trace.edits import pin as pin
from .trace.edits import replace as replace
from .trace.score import Score as Score

__version__: str
