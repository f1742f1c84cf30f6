"""Doors for people who come from elsewhere: the interfaces of other queues over the layouts of this one."""
