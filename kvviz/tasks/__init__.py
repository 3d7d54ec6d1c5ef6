"""Tasks with known answers, made from any text."""

from .needle import NeedleSample, needle_sample, needle_samples

__all__ = ["NeedleSample", "needle_sample", "needle_samples"]
