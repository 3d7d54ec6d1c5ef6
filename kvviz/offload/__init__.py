"""Where keys and values are kept."""
