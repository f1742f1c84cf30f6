# Who may do what with which queues: a policy for `dirqueue entroq serve --authz opahttp`.
#
#   opa run --server --addr localhost:8181 policy.rego permissions.json
#
# permissions.json says who has which token, and what each user may do; "*" is everybody, also without a token, and the
# action "*" is every action:
#
#   {"entroq": {
#     "tokens":  {"a long random text": "alice"},
#     "allowed": {"alice": [{"prefix": "/ns=alice/", "actions": ["*"]}, {"exact": "inbox", "actions": ["INSERT"]}],
#                 "*":     [{"exact": "news", "actions": ["READ"]}]}}}
#
# A policy of your own answers the same: {"allow": true | false, "failed": [...], "errors": [...]}. One that reads signed
# tokens replaces `username` by what io.jwt.decode_verify says.

package entroq.authz

import rego.v1

default allow := false

# Something is wanted, and nothing of it is refused.
allow if {
	count(input.queues) > 0
	count(failed) == 0
}

default username := ""

username := data.entroq.tokens[input.authz.credentials] if lower(input.authz.type) == "bearer"

failed contains refusal if {
	some queue in input.queues
	refused := [action | some action in queue.actions; not permitted(queue, action)]
	count(refused) > 0
	refusal := {"exact": queue.exact, "actions": refused}
}

errors contains "the token is missing or unknown" if {
	username == ""
	count(failed) > 0
}

permitted(queue, action) if {
	some spec in allowed
	matches(spec, queue)
	grants(spec, action)
}

allowed contains spec if some spec in data.entroq.allowed[username]

allowed contains spec if some spec in data.entroq.allowed["*"]

matches(spec, queue) if spec.exact == queue.exact

matches(spec, queue) if startswith(queue.exact, spec.prefix)

grants(spec, action) if action in spec.actions

grants(spec, _) if "*" in spec.actions
