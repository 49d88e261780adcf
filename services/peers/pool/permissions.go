package pool

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/tandem-llm/tandem/services/peers/rpc"
)

// everyRole is who may connect to a pool's server.
var everyRole = []rpc.Role{rpc.Gateway, rpc.Drafter, rpc.Verifier}

const (
	answerTime = time.Minute         // for which a verifier may answer a ticket
	inboxes    = "_INBOX"            // first token of the subjects of replies
	streamAPI  = "$JS.API.STREAM."   // JetStream's requests about streams; a bucket is one
	readerAPI  = "$JS.API.CONSUMER." // JetStream's requests of those who read a stream

	// readerName is what a gateway calls itself to read the registry, and the name of the connections that do.
	readerName = "registry"
)

// Accounts of a server with a registry. JetStream sends answers to whatever subject a request names, and puts into a stream whatever
// subject its maker names, with rights of its own. So it is in an account in which the pool's subjects do not exist, and only gateways are
// let into that. What processes enter comes there from the pool's account, one way and without an answer.
const (
	poolAccount     = "TANDEM"
	registryAccount = "TANDEM_REGISTRY"
)

// right says who may send on a subject, and who may subscribe to it. Nobody else may.
type right struct {
	subject string
	send    []rpc.Role
	receive []rpc.Role
}

// rights is the whole of what processes may do in the pool's account of a server: tandem's own server and the configuration of another one
// (NATSConfig) are both made of it. The server knows a connection's role, not its process: processes of one role are not separated.
func (c Config) rights() []right {
	gateway, drafter, verifier := []rpc.Role{rpc.Gateway}, []rpc.Role{rpc.Drafter}, []rpc.Role{rpc.Verifier}
	senders, readers := []rpc.Role{rpc.Gateway, rpc.Drafter}, []rpc.Role{rpc.Gateway, rpc.Verifier}
	out := []right{
		{c.Subject("ticket"), senders, verifier},
		{c.Subject("ticket.>"), senders, verifier}, // of one verifier each
		{c.Subject("drafters"), drafter, readers},
		{c.Subject("drafters.ask"), readers, drafter},
		{c.Subject("verifiers"), verifier, gateway},
		{c.Subject("verifiers.ask"), gateway, verifier},
		{c.Subject("gateways"), gateway, gateway},
		{c.Subject("gateways.ask"), gateway, gateway},
		{c.registryInfo(), gateway, nil}, // whether there is a registry: all that is imported from its account
	}
	for _, role := range everyRole {
		own := []rpc.Role{role}
		out = append(out, right{inboxPrefix(string(role)) + ".>", nil, own}, right{c.RegistryKey(string(role) + "s.*"), own, nil})
	}
	return out
}

// registryRights is what a gateway may do in the account of the registry. makes says that it also makes the bucket, where the server does
// not.
func (c Config) registryRights(makes bool) *server.Permissions {
	stream := c.registryStream()
	send := []string{c.registryInfo(), "$JS.FC." + stream + ".>"}
	for _, request := range []string{"CREATE.", "INFO.", "DELETE."} { // of readers whose random names nobody else learns
		send = append(send, readerAPI+request+stream+".>")
	}
	if makes {
		send = append(send, streamAPI+"CREATE."+stream)
	}
	return &server.Permissions{Publish: &server.SubjectPermission{Allow: send},
		Subscribe: &server.SubjectPermission{Allow: []string{inboxPrefix(readerName) + ".>"}}}
}

// RegistryKey returns the subject on which a process sends what it enters in the registry under a key. Nothing answers.
func (c Config) RegistryKey(key string) string { return "$KV." + c.Registry() + "." + key }

// registryStream returns the name of the registry's stream.
func (c Config) registryStream() string { return "KV_" + c.Registry() }

// registryInfo returns the subject on which JetStream tells of the registry's stream.
func (c Config) registryInfo() string { return streamAPI + "INFO." + c.registryStream() }

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

// inboxPrefix is how the subjects begin on which those of a name, such as a role's, get replies.
func inboxPrefix(as string) string { return inboxes + "." + as }

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
// to what its role needs. With a secret, a process shows that it has it; without, it shows a certificate with one role in it, which belongs
// to one account, so that there is no registry. The text holds tokens derived from the secret. Errors: those of w.
func (c Config) NATSConfig(w io.Writer, secret *rpc.Secret) error {
	var b strings.Builder
	b.WriteString("# Who may do what at the NATS server of tandem's processes. Printed by tandem nats-config.\naccounts {\n")
	fmt.Fprintf(&b, "  %s {\n    users = [\n", poolAccount)
	for _, role := range everyRole {
		send, receive := c.subjects([]rpc.Role{role})
		more := ""
		if role == rpc.Verifier {
			more = fmt.Sprintf("          allow_responses { max: 1, expires: %q }\n", answerTime)
		}
		user(&b, string(role), role, secret, send, receive, more)
	}
	b.WriteString("    ]\n")
	if secret.PoolToken(rpc.Gateway) == "" {
		b.WriteString("  }\n}\n")
	} else {
		keys, info := c.RegistryKey(">"), c.registryInfo()
		fmt.Fprintf(&b, "    exports = [{ stream: %q, accounts: [%s] }]\n", keys, registryAccount)
		fmt.Fprintf(&b, "    imports = [{ service: { account: %s, subject: %q } }]\n  }\n", registryAccount, info)
		fmt.Fprintf(&b, "  # The registry, where the server has JetStream. The pool's subjects do not exist here.\n")
		fmt.Fprintf(&b, "  %s {\n    jetstream { max_mem: 64M, max_file: 0, max_streams: 1 }\n    users = [\n", registryAccount)
		p := c.registryRights(true)
		user(&b, readerName, rpc.Gateway, secret, p.Publish.Allow, p.Subscribe.Allow, "")
		fmt.Fprintf(&b, "    ]\n    exports = [{ service: %q, accounts: [%s] }]\n", info, poolAccount)
		fmt.Fprintf(&b, "    imports = [{ stream: { account: %s, subject: %q } }]\n  }\n}\n", poolAccount, keys)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// user writes a user of an account who shows the role's token of the secret or, without one, its certificate.
func user(b *strings.Builder, name string, role rpc.Role, secret *rpc.Secret, send, receive []string, more string) {
	if token := secret.PoolToken(role); token != "" {
		fmt.Fprintf(b, "      {\n        user: %q, password: %q\n", name, token)
	} else {
		fmt.Fprintf(b, "      {\n        user: %q # by certificate: the server needs tls { …, verify_and_map: true }\n", role.URI())
	}
	fmt.Fprintf(b, "        permissions {\n          publish { allow: %s }\n          subscribe { allow: %s }\n%s        }\n      }\n",
		list(send), list(receive), more)
}

// list returns subjects in the form of NATS's configuration, one a line.
func list(subjects []string) string {
	var b strings.Builder
	b.WriteString("[\n")
	for _, s := range subjects {
		fmt.Fprintf(&b, "            %q\n", s)
	}
	b.WriteString("          ]")
	return b.String()
}
