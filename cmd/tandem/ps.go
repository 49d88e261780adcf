package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/app/start"
	"github.com/tandem-llm/tandem/app/talk"
	"github.com/tandem-llm/tandem/app/talk/status"
	"github.com/tandem-llm/tandem/app/terminal"
	"github.com/tandem-llm/tandem/client"
	"github.com/tandem-llm/tandem/processes/placement"
	"github.com/tandem-llm/tandem/processes/settings"
	tandemv1 "github.com/tandem-llm/tandem/proto/tandem/v1"
)

type psCmd struct {
	Verbose bool `short:"v" help:"Also show what models compute (IDENTITY), instruction sets, pages of memory, and the fleet of one box." setting:"-"`
	gatewayFlags
	output
}

type topCmd struct {
	Every time.Duration `help:"Time between two lines." default:"1s" setting:"-"`
	Count int           `help:"Number of lines to print; 0 = until stopped." default:"0" setting:"-"`
	gatewayFlags
}

// Run lists the processes behind a gateway.
func (c *psCmd) Run(a *app) error {
	conn, err := c.dial()
	if err != nil {
		return err
	}
	defer conn.Close()
	d, err := look(a.ctx, conn)
	if err != nil {
		return err
	}
	s := status.Of(d)
	s.Verbose = c.Verbose
	s.Measured(placement.Brings(start.PlanFile(settings.PassCosts{}), buildVersion().Version))
	return c.show(a, s)
}

// Run prints a line for each interval with the activity of a gateway and its processes.
func (c *topCmd) Run(a *app) error {
	if c.Every < 100*time.Millisecond {
		return tandem.Errorf("", tandem.Invalid, "--every is %v: want at least 100ms", c.Every)
	}
	if c.Count < 0 {
		return tandem.Errorf("", tandem.Invalid, "--count is %d: want 0 or more", c.Count)
	}
	conn, err := c.dial()
	if err != nil {
		return err
	}
	defer conn.Close()
	var before status.Activity
	for n := 0; ; n++ {
		d, err := look(a.ctx, conn)
		if a.ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		now := status.ActivityOf(d, time.Now())
		if n > 0 {
			if f, ok := a.stdout.(*os.File); ok && terminal.Is(f) {
				fmt.Fprint(a.stdout, "\x1b[H\x1b[2J")
			}
			if err := errors.Join(now.Print(a.stdout, before), status.Of(d).Print(a.stdout)); err != nil {
				return err
			}
		}
		if before = now; c.Count > 0 && n == c.Count {
			return nil
		}
		select {
		case <-time.After(c.Every):
		case <-a.ctx.Done():
			return nil
		}
	}
}

// look asks a gateway for its description.
func look(ctx context.Context, conn *client.Client) (*tandemv1.DescribeResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	d, err := conn.Describe(ctx)
	return d, talk.Error(err)
}

// drawn returns how a gateway draws over HTTP where a request says nothing; an older one does not tell.
func drawn(s *tandemv1.Sampling) tandem.Sampling {
	if s == nil {
		return tandem.ServerSampling
	}
	return tandem.Sampling{Temperature: s.GetTemperature(), TopK: int(s.GetTopK()), TopP: s.GetTopP(), MinP: s.GetMinP(),
		RepeatPenalty: s.GetRepeatPenalty(), RepeatLast: int(s.GetRepeatLast()), FrequencyPenalty: s.GetFrequencyPenalty(),
		PresencePenalty: s.GetPresencePenalty()}
}
