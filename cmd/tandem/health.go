package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/app/talk/status"
	"github.com/tandem-llm/tandem/app/terminal"
	"github.com/tandem-llm/tandem/processes/roles"
	"github.com/tandem-llm/tandem/processes/settings"
	"github.com/tandem-llm/tandem/services/peers/rpc"
)

// healthCmd is for scripts, and for health checks in images that hold only this program.
type healthCmd struct {
	Addr    []string      `help:"gRPC address of the process, as its --listen, or http://host:port of its HTTP server; may be repeated: all must serve (default: TANDEM_LISTEN, or the gateway's 127.0.0.1:8451)." placeholder:"ADDR" sep:"none" setting:"-"`
	Timeout time.Duration `help:"How long the process may take to answer." default:"2s" setting:"-"`
	Listen  string        `hidden:""` // the process's own setting, from the environment or the file
	settings.Certificate
	output
}

// healthResult is what health prints.
type healthResult struct {
	Addr    []string `json:"addr"`
	Serving bool     `json:"serving"`
}

// Run asks every address. Errors: Invalid, Unavailable.
func (c *healthCmd) Run(a *app) error {
	if c.Timeout <= 0 {
		return tandem.Errorf("", tandem.Invalid, "--timeout is %v: want more than 0", c.Timeout)
	}
	certificate, err := roles.TLSFiles(c.Certificate).Load()
	if err != nil {
		return err
	}
	credentials := &rpc.Credentials{Certificate: certificate}
	addrs := c.Addr
	if len(addrs) == 0 {
		addrs = []string{or(c.Listen, roles.GatewayAddr)}
	}
	ctx, cancel := context.WithTimeout(a.ctx, c.Timeout)
	defer cancel()
	for _, addr := range addrs {
		if err := status.Serves(ctx, addr, credentials); err != nil {
			return err
		}
	}
	if c.JSON {
		return terminal.PrintJSON(a.stdout, healthResult{Addr: addrs, Serving: true})
	}
	_, err = fmt.Fprintln(a.stdout, "serving: "+strings.Join(addrs, ", "))
	return err
}
