"""Ready-made jobs: drain, fill, report, purge and replay, each in a module of its own.

Layer: edges.  Each returns a summary of counts; `dirqueue spark VERB` is the same from the shell.
"""
