package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/roles"
	"github.com/tandem-llm/tandem/services/rpc"
)

// healthCmd is for scripts, and for health checks in images that hold only this program.
type healthCmd struct {
	Addr    []string      `help:"gRPC address of the process, as its --listen, or http://host:port of its HTTP server; may be repeated: all must serve (default: TANDEM_LISTEN, or the gateway's 127.0.0.1:8451)." placeholder:"ADDR" sep:"none" setting:"-"`
	Timeout time.Duration `help:"How long the process may take to answer." default:"2s" setting:"-"`
	Listen  string        `hidden:""` // the process's own setting, from the environment or the file
	secureFlags
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
	certificate, err := c.certificate()
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
		ask := askGRPC
		if strings.HasPrefix(addr, "http://") || strings.HasPrefix(addr, "https://") {
			ask = askHTTP
		}
		if err := ask(ctx, addr, credentials); err != nil {
			return err
		}
	}
	if c.JSON {
		return printJSON(a.stdout, healthResult{Addr: addrs, Serving: true})
	}
	_, err = fmt.Fprintln(a.stdout, "serving: "+strings.Join(addrs, ", "))
	return err
}

// askGRPC asks grpc.health.v1 of the process that listens at addr.
func askGRPC(ctx context.Context, addr string, credentials *rpc.Credentials) error {
	conn, err := credentials.DialListener(addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	r, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{})
	if err != nil {
		return tandem.Errorf("health", tandem.Unavailable, "%s: %w", addr, err)
	}
	if r.GetStatus() != grpc_health_v1.HealthCheckResponse_SERVING {
		return tandem.Errorf("health", tandem.Unavailable, "%s: the process answers %s: it is loading or stopping", addr, r.GetStatus())
	}
	return nil
}

// askHTTP asks /readyz, or the path that addr has.
func askHTTP(ctx context.Context, addr string, credentials *rpc.Credentials) error {
	url := strings.TrimSuffix(addr, "/")
	if strings.Count(url, "/") == 2 {
		url += "/readyz"
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return tandem.Errorf("health", tandem.Invalid, "%s: %w", addr, err)
	}
	client := http.Client{Transport: &http.Transport{TLSClientConfig: credentials.Certificate.Client(), DisableKeepAlives: true}}
	r, err := client.Do(req)
	if err != nil {
		return tandem.Errorf("health", tandem.Unavailable, "%w", err)
	}
	defer r.Body.Close()
	if r.StatusCode != http.StatusOK {
		why, _ := io.ReadAll(io.LimitReader(r.Body, 300))
		return tandem.Errorf("health", tandem.Unavailable, "%s: %s: %s", url, r.Status, oneLine(string(why)))
	}
	return nil
}
