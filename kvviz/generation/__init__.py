"""generate(), compare(), capture() and replay(). This room imports models, cache and the rooms below them."""
