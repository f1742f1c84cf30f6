"""EntroQ on a directory: its tasks, and a service that speaks its own HTTP and gRPC (`dirqueue entroq serve`).

Layer: edges.  Rooms: tasks (pure values, the store's protocol), values (JSON and bytes), store (a Space as a store),
wire (messages of gRPC), desk (waiting claims), http and grpc (the two doors), authz and opa (who may), serve.
"""
