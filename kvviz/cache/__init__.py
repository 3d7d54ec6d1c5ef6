"""One layer's cache and its decode step, and the cache, ledger and recorder of all layers.

The only room on transformers' extension points. It imports methods and what lies below them.
"""
