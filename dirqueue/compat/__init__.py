"""The interfaces of other queues over the layouts of this one, for programs written for them."""
