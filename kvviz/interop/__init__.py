"""Other libraries' methods inside kvviz; each module says which library it is for, and needs that one installed."""
