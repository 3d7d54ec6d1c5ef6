"""Public datasets as tasks: from a local file in the dataset's own schema, or from the Hugging Face hub."""

from .gsm8k import GSM8K
from .infinitebench import InfiniteBench
from .longbench import LongBench
from .pg19 import PG19

__all__ = ["GSM8K", "PG19", "InfiniteBench", "LongBench"]
