// Package draining lets whoever runs a process of a fleet empty it: it finishes the sessions that it has and takes no new ones. The process
// announces that, so that gateways put new sessions elsewhere.
package draining

import (
	"context"

	"google.golang.org/grpc"

	"github.com/tandem-llm/tandem"
	peerv1 "github.com/tandem-llm/tandem/proto/peer/v1"
)

// Refuse returns the error with which a process of that role refuses a new session while it drains: Unavailable.
func Refuse(role string) error {
	return tandem.Errorf(role, tandem.Unavailable, "this %s drains: it takes no new sessions until `tandem drain --undo`", role)
}

// Register serves the call of Drain on r, for a process of that role; drain gets its undo.
func Register(r grpc.ServiceRegistrar, role string, drain func(undo bool)) {
	peerv1.RegisterProcessServiceServer(r, &adapter{role: role, drain: drain})
}

type adapter struct {
	peerv1.UnimplementedProcessServiceServer
	role  string
	drain func(undo bool)
}

func (a *adapter) Drain(_ context.Context, r *peerv1.DrainRequest) (*peerv1.DrainResponse, error) {
	a.drain(r.GetUndo())
	return &peerv1.DrainResponse{Role: a.role}, nil
}

// Drain has the process at the other end of conn take no new sessions or, with undo, take them again. It returns the process's role.
func Drain(ctx context.Context, conn grpc.ClientConnInterface, undo bool) (role string, err error) {
	r, err := peerv1.NewProcessServiceClient(conn).Drain(ctx, &peerv1.DrainRequest{Undo: undo})
	return r.GetRole(), err
}
