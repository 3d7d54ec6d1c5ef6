"""Attention of one query token over selected tokens."""
