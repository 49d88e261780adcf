package status

import (
	"context"
	"io"
	"net/http"
	"strings"

	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/app/terminal"
	"github.com/tandem-llm/tandem/client"
	"github.com/tandem-llm/tandem/services/peers/rpc"
)

// Serves asks the process at addr whether it serves: by grpc.health.v1 at a gRPC address, by /readyz at http://host:port. nil: it does.
// Errors: Unavailable if it does not, Invalid for an address that is none.
func Serves(ctx context.Context, addr string, credentials *rpc.Credentials) error {
	if strings.HasPrefix(addr, "http://") || strings.HasPrefix(addr, "https://") {
		return askHTTP(ctx, addr, credentials)
	}
	return askGRPC(ctx, addr, credentials)
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
		return unreachable(addr, tandem.Errorf("health", tandem.Unavailable, "%s: %w", addr, err))
	}
	if r.GetStatus() != grpc_health_v1.HealthCheckResponse_SERVING {
		return tandem.Errorf("health", tandem.Unavailable, "%s: the process answers %s: it is loading or stopping", addr, r.GetStatus())
	}
	return nil
}

// unreachable returns err in plain words if there is no connection to addr.
func unreachable(addr string, err error) error {
	if why := client.Unreachable(addr, err.Error()); why != "" {
		return tandem.Errorf("health", tandem.Unavailable, "%s", why)
	}
	return err
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
		return unreachable(addr, tandem.Errorf("health", tandem.Unavailable, "%w", err))
	}
	defer r.Body.Close()
	if r.StatusCode != http.StatusOK {
		why, _ := io.ReadAll(io.LimitReader(r.Body, 300))
		return tandem.Errorf("health", tandem.Unavailable, "%s: %s: %s", url, r.Status, terminal.OneLine(string(why)))
	}
	return nil
}
