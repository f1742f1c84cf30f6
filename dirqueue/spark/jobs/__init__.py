"""Ready-made jobs: drain, fill, report, purge and replay, one in each module.

Layer: edges.  Each returns a summary of counts; `dirqueue spark VERB` is the same from the shell.
"""
