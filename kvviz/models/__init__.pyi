from .language_model import LanguageModel as LanguageModel
from .loading import BUNDLED as BUNDLED
from .loading import BundledModel as BundledModel
from .loading import load as load
