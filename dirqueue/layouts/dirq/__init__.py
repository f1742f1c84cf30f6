"""The two formats of dirq; `simple.py` and `normal.py` are where to start."""
