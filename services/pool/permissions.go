package pool

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/tandem-llm/tandem/services/rpc"
)

// everyRole is who may connect to a pool's server.
var everyRole = []rpc.Role{rpc.Gateway, rpc.Drafter, rpc.Verifier}

const (
	answerTime = time.Minute         // for which a verifier may answer a ticket
	inboxes    = "_INBOX"            // first token of the subjects of replies
	streamAPI  = "$JS.API.STREAM."   // JetStream's requests about streams; a bucket is one
	readerAPI  = "$JS.API.CONSUMER." // JetStream's requests of those who read a stream
)

// right says who may send on a subject, and who may subscribe to it. Nobody else may.
type right struct {
	subject string
	send    []rpc.Role
	receive []rpc.Role
}

// rights is the whole of what processes may do at a pool's server: tandem's own server and the configuration of another one (NATSConfig)
// are both made of it. The server knows a connection's role, not its process: processes of one role are not separated.
func (c Config) rights() []right {
	gateway, drafter, verifier := []rpc.Role{rpc.Gateway}, []rpc.Role{rpc.Drafter}, []rpc.Role{rpc.Verifier}
	senders, readers := []rpc.Role{rpc.Gateway, rpc.Drafter}, []rpc.Role{rpc.Gateway, rpc.Verifier}
	stream := "KV_" + c.Registry()
	out := []right{
		{c.Subject("ticket"), senders, verifier},
		{c.Subject("ticket.>"), senders, verifier}, // of one verifier each
		{c.Subject("drafters"), drafter, readers},
		{c.Subject("drafters.ask"), readers, drafter},
		{c.Subject("verifiers"), verifier, gateway},
		{c.Subject("verifiers.ask"), gateway, verifier},
		{c.Subject("gateways"), gateway, gateway},
		{c.Subject("gateways.ask"), gateway, gateway},
		// The bucket is a stream. Who makes it says what goes into it, which could be all tickets: so drafters and verifiers must not.
		{streamAPI + "CREATE." + stream, gateway, nil},
		{streamAPI + "UPDATE." + stream, gateway, nil},
		{"$JS.API.INFO", everyRole, nil},
		{streamAPI + "INFO." + stream, everyRole, nil},
		{streamAPI + "MSG.GET." + stream, readers, nil},
		{"$JS.API.DIRECT.GET." + stream + ".>", readers, nil},
		{readerAPI + "CREATE." + stream + ".>", readers, nil},
		{readerAPI + "INFO." + stream + ".>", readers, nil},
		{readerAPI + "DELETE." + stream + ".>", readers, nil},
		{"$JS.FC." + stream + ".>", readers, nil},
	}
	for _, role := range everyRole {
		own := []rpc.Role{role}
		out = append(out, right{inboxPrefix(role) + ".>", nil, own}, right{"$KV." + c.Registry() + "." + string(role) + "s.*", own, nil})
	}
	return out
}

// Registry returns the name of the key-value bucket in which the pool's processes enter themselves, by keys such as drafters.KEY. A
// bucket's name has letters, digits, dashes and underscores alone.
func (c Config) Registry() string {
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' {
			return r
		}
		return '_'
	}, c.Subject("members"))
}

// inboxPrefix is how the subjects begin on which processes of a role get replies.
func inboxPrefix(role rpc.Role) string { return inboxes + "." + string(role) }

// subjects lists the subjects on which one of the roles may send, and those to which it may subscribe.
func (c Config) subjects(roles []rpc.Role) (send, receive []string) {
	has := func(some []rpc.Role) bool {
		return slices.ContainsFunc(some, func(r rpc.Role) bool { return slices.Contains(roles, r) })
	}
	for _, r := range c.rights() {
		if has(r.send) {
			send = append(send, r.subject)
		}
		if has(r.receive) {
			receive = append(receive, r.subject)
		}
	}
	return send, receive
}

// permissions returns what one of the roles may do, for tandem's own server. A client that claims no role gets its replies anywhere.
func (c Config) permissions(roles []rpc.Role, claimed bool) *server.Permissions {
	send, receive := c.subjects(roles)
	if !claimed {
		receive = append(receive, inboxes+".>")
	}
	p := &server.Permissions{Publish: &server.SubjectPermission{Allow: send}, Subscribe: &server.SubjectPermission{Allow: receive}}
	if slices.Contains(roles, rpc.Verifier) {
		p.Response = &server.ResponsePermission{MaxMsgs: 1, Expires: answerTime}
	}
	return p
}

// NATSConfig writes, for a NATS server that is not tandem's, the part of its configuration that lets tandem's processes in and limits each
// to what its role needs. With a secret, a process shows that it has it; without, it shows a certificate with one role in it. The text
// holds tokens derived from the secret. Errors: those of w.
func (c Config) NATSConfig(w io.Writer, secret *rpc.Secret) error {
	var b strings.Builder
	b.WriteString("# Who may do what at the NATS server of tandem's processes. Printed by tandem nats-config.\n")
	b.WriteString("authorization {\n  users = [\n")
	for _, role := range everyRole {
		if token := secret.PoolToken(role); token != "" {
			fmt.Fprintf(&b, "    {\n      user: %q, password: %q\n", role, token)
		} else {
			fmt.Fprintf(&b, "    {\n      user: %q # by certificate: the server needs tls { …, verify_and_map: true }\n", role.URI())
		}
		send, receive := c.subjects([]rpc.Role{role})
		fmt.Fprintf(&b, "      permissions {\n        publish { allow: %s }\n        subscribe { allow: %s }\n", list(send), list(receive))
		if role == rpc.Verifier {
			fmt.Fprintf(&b, "        allow_responses { max: 1, expires: %q }\n", answerTime)
		}
		b.WriteString("      }\n    }\n")
	}
	b.WriteString("  ]\n}\n")
	_, err := io.WriteString(w, b.String())
	return err
}

// list returns subjects in the form of NATS's configuration, one a line.
func list(subjects []string) string {
	var b strings.Builder
	b.WriteString("[\n")
	for _, s := range subjects {
		fmt.Fprintf(&b, "          %q\n", s)
	}
	b.WriteString("        ]")
	return b.String()
}
