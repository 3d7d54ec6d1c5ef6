from .budget_explorer import BudgetExplorer as BudgetExplorer
from .canvas_matrix import CanvasMatrix as CanvasMatrix
from .cluster_inspector import ClusterInspector as ClusterInspector
from .decode_stepper import DecodeStepper as DecodeStepper
from .mechanism_stepper import MechanismStepper as MechanismStepper
from .method_comparer import MethodComparer as MethodComparer
from .miss_inspector import MissInspector as MissInspector
from .token_strip import TokenStrip as TokenStrip
