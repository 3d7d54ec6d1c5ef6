"""SelectiveCache and the attention function behind it: the only folder on transformers' extension points."""

from .attach import attach, attached, attention_observer, detach
from .cache import SelectiveCache

__all__ = ["SelectiveCache", "attach", "attached", "attention_observer", "detach"]
