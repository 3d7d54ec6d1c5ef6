"""Clusterings of keys."""
