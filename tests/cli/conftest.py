"""The command, run in this process or as a real one."""

from support.commands import _plain_environment, dq, queue, real, start

__all__ = ["_plain_environment", "dq", "queue", "real", "start"]
