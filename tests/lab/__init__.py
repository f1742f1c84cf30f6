"""Tools that break things on purpose; nothing here knows how a queue works, only what a filesystem does."""
