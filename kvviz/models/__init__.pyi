from .language_model import LanguageModel as LanguageModel
from .loading import load as load
