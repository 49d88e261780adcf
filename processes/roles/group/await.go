package group

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/tandem-llm/tandem/client"
	tandemv1 "github.com/tandem-llm/tandem/proto/tandem/v1"
)

// enlistTime is how long a gateway may take to find the drafter that serves already; it needs milliseconds.
const enlistTime = 2 * time.Second

// awaitDrafters waits until the gateway has found a drafter, so that the first request does not begin without it. After enlistTime
// it gives up: requests work without a drafter until one is found.
func awaitDrafters(ctx context.Context, addr string, options []client.Option) {
	ctx, cancel := context.WithTimeout(ctx, enlistTime)
	defer cancel()
	c, err := client.Dial(addr, options...)
	if err != nil {
		return
	}
	defer c.Close()
	for ctx.Err() == nil {
		d, err := c.Describe(ctx)
		if err == nil && slices.ContainsFunc(d.GetProcesses(), func(p *tandemv1.Process) bool {
			return p.GetRole() == "drafter" && p.GetPid() != 0 && p.GetUp() // lookup has no process
		}) {
			return
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

// readyTime is how long up waits for the engine's first token, which takes milliseconds once the verifier serves.
const readyTime = 10 * time.Second

// awaitHTTP waits, for readyTime at most, until a gateway says that it is ready, so that the first request need not wait.
// A gateway that is not ready tells its clients why.
func awaitHTTP(ctx context.Context, url string) {
	if !strings.HasPrefix(url, "http://") {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, readyTime)
	defer cancel()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/readyz", nil)
		if err != nil {
			return
		}
		answer, err := client.Do(r)
		if err == nil {
			answer.Body.Close()
			if answer.StatusCode == http.StatusOK {
				return
			}
		}
		if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
			return
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return
		}
	}
}
