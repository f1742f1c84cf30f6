"""The `dirqueue` command.

Layer: edges.  Data goes to stdout, messages to stderr, the outcome is the exit status (`exits.Exit`).
`main` has the table of verbs; the module of a verb is imported when the verb is used.
"""
