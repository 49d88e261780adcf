package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/app/terminal"
	"github.com/tandem-llm/tandem/client"
	"github.com/tandem-llm/tandem/processes/roles"
	"github.com/tandem-llm/tandem/processes/settings"
	"github.com/tandem-llm/tandem/services/peers/draining"
	"github.com/tandem-llm/tandem/services/peers/rpc"
)

// drainTime is how long a process may take to answer.
const drainTime = 5 * time.Second

type drainCmd struct {
	Address string `arg:"" help:"gRPC address of a verifier or drafter, as its --listen." placeholder:"ADDRESS" setting:"-"`
	Undo    bool   `help:"Take new sessions again." setting:"-"`
	settings.Certificate
	settings.SharedSecret
	output
}

// drainResult is what drain prints.
type drainResult struct {
	Address  string `json:"address"`
	Role     string `json:"role"`
	Draining bool   `json:"draining"`
}

// Run empties a process, or takes that back. Errors: Invalid, Unavailable, Unauthenticated, Unsupported.
func (c *drainCmd) Run(a *app) error {
	if err := rpc.CheckAddress(c.Address); err != nil {
		return err
	}
	certificate, err := roles.TLSFiles(c.Certificate).Load()
	if err != nil {
		return err
	}
	credentials := &rpc.Credentials{Certificate: certificate}
	if c.SecretFile != "" {
		if credentials.Secret, err = rpc.OpenSecret(c.SecretFile, nil); err != nil {
			return tandem.Errorf("", tandem.Invalid, "--secret-file: %w", err)
		}
	}
	conn, err := credentials.Dialer("")(c.Address)
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(a.ctx, drainTime)
	defer cancel()
	role, err := draining.Drain(ctx, conn, c.Undo)
	switch {
	case errors.Is(err, tandem.Unsupported):
		return tandem.Errorf("", tandem.Unsupported, "%s is no verifier or drafter: want the address of one, as `tandem ps` lists them",
			c.Address)
	case err != nil && client.Unreachable(c.Address, err.Error()) != "":
		return tandem.Errorf("", tandem.Unavailable, "%s", client.Unreachable(c.Address, err.Error()))
	case err != nil:
		return tandem.Errorf("", tandem.KindOf(err), "%s could not be asked: %w", c.Address, err)
	}
	if c.JSON {
		return terminal.PrintJSON(a.stdout, drainResult{Address: c.Address, Role: role, Draining: !c.Undo})
	}
	says := "drains: its sessions go on, new ones are refused"
	if c.Undo {
		says = "takes new sessions again"
	}
	_, err = fmt.Fprintf(a.stdout, "%s at %s %s\n", terminal.Shown(role), c.Address, says)
	return err
}
