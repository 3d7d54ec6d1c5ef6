"""generate(), compare(), capture() and replay(), and what they share. They import models, cache and what lies below."""
