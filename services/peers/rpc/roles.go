package rpc

import (
	"crypto/x509"
	"slices"
	"strings"

	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/tandem-llm/tandem"
	peerv1 "github.com/tandem-llm/tandem/proto/peer/v1"
)

// Role is what a process is. A certificate names the roles of its holder by URIs among its subject alternative names:
// tandem://role/gateway, and so on.
type Role string

// The roles.
const (
	Gateway  Role = "gateway"
	Drafter  Role = "drafter"
	Verifier Role = "verifier"
)

const (
	roleScheme = "tandem"
	roleHost   = "role"
)

// URI returns the name of the role in a certificate.
func (r Role) URI() string { return roleScheme + "://" + roleHost + "/" + string(r) }

// mayCall lists the roles that may call each method of the internal services. Other methods are for every role.
var mayCall = map[string][]Role{
	peerv1.VerifierService_Open_FullMethodName:     {Gateway},
	peerv1.VerifierService_Hold_FullMethodName:     {Gateway},
	peerv1.VerifierService_Close_FullMethodName:    {Gateway},
	peerv1.VerifierService_Verdicts_FullMethodName: {Gateway},
	peerv1.VerifierService_Submit_FullMethodName:   {Gateway},
	peerv1.VerifierService_Vectors_FullMethodName:  {Gateway},
	peerv1.VerifierService_Describe_FullMethodName: {Gateway, Drafter},
	// A session's id, random and told to its drafters alone, is what entitles a drafter to its features.
	peerv1.VerifierService_Features_FullMethodName: {Drafter},

	peerv1.DrafterService_Open_FullMethodName:       {Gateway},
	peerv1.DrafterService_Hold_FullMethodName:       {Gateway},
	peerv1.DrafterService_Propose_FullMethodName:    {Gateway},
	peerv1.DrafterService_Close_FullMethodName:      {Gateway},
	peerv1.DrafterService_Vocabulary_FullMethodName: {Gateway},
	peerv1.DrafterService_Target_FullMethodName:     {Gateway},
	peerv1.DrafterService_Describe_FullMethodName:   {Gateway, Verifier},
	peerv1.DrafterService_Claim_FullMethodName:      {Verifier},
	peerv1.DrafterService_Release_FullMethodName:    {Verifier},

	peerv1.ProcessService_Drain_FullMethodName: {Gateway}, // or whoever has a gateway's certificate to run a fleet with
}

// openToAll is the health check, open to everybody who can connect, because probes have no secret.
const openToAll = grpc_health_v1.Health_Check_FullMethodName

// mostRoles is how many roles of a certificate are read.
const mostRoles = 8

// Roles returns the roles that a certificate names.
func Roles(c *x509.Certificate) (out []Role) {
	for _, u := range c.URIs {
		if u.Scheme == roleScheme && u.Host == roleHost && len(out) < mostRoles {
			out = append(out, Role(strings.TrimPrefix(u.Path, "/")))
		}
	}
	return out
}

// admitRole returns nil if the holder of a certificate may call method. Errors: Unauthenticated.
func admitRole(c *x509.Certificate, method string) error {
	wanted, limited := mayCall[method]
	has := Roles(c)
	if slices.ContainsFunc(has, func(r Role) bool {
		return slices.Contains(wanted, r) || !limited && (r == Gateway || r == Drafter || r == Verifier)
	}) {
		return nil
	}
	if !limited {
		wanted = []Role{Gateway, Drafter, Verifier}
	}
	return tandem.Errorf("access", tandem.Unauthenticated,
		"%s: the caller's certificate (%s) has %s: want %s among its subject alternative names",
		method, c.Subject, rolesText(has, "no role"), rolesText(wanted, ""))
}

// rolesText lists roles in the form of certificates.
func rolesText(roles []Role, none string) string {
	if len(roles) == 0 {
		return none
	}
	uris := make([]string, len(roles))
	for i, r := range roles {
		uris[i] = "URI:" + r.URI()
	}
	return strings.Join(uris, " or ")
}
