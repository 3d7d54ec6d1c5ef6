"""The KV cache and decode step of one layer, and the cache, ledger and recorder of all layers.

Only this room uses transformers' extension points. It imports methods and the rooms below them.
"""
