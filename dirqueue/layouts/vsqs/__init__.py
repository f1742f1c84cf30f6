"""The format of VSQS; `layout.py` is where to start."""
