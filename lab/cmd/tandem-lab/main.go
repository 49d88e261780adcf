// Command tandem-lab measures tandem for its developers. It is not shipped: go build -C lab -o .. ./cmd/tandem-lab builds it.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"syscall"

	"github.com/alecthomas/kong"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/app/terminal"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/modelfile/gguf"
	"github.com/tandem-llm/tandem/models"
	"github.com/tandem-llm/tandem/processes/roles"
	"github.com/tandem-llm/tandem/processes/settings"
)

// cli is the command line.
type cli struct {
	Bench struct {
		Kernels kernelsCmd `cmd:"" help:"Products of single matrices, beside the limits of the machine."`
		Devices devicesCmd `cmd:"" help:"Several devices and placements in one run: equal bits and ids, a draft's step beside its limit, tokens per second, what drafting ahead brings."`
		Experts expertsCmd `cmd:"" help:"What the passes of a model with experts cost by the experts that they use: chains, trees, and rows that are all alike."`
		Guesses guessesCmd `cmd:"" help:"How good the guesses of heads, prompt tokens and drafts are: tokens a round by the size of trees, accuracies, calibration."`
		Split   splitCmd   `cmd:"" help:"Passes divided between two groups of cores: even, by the times of each alone, and adjusted, beside the ideal."`
	} `cmd:"" help:"Measure parts of tandem."`
	Arrows   arrowsCmd   `cmd:"" help:"Count which files of a room use each other, and how many of these arrows run back up."`
	Campaign campaignCmd `cmd:"" help:"Disturb tandems on several boxes, and check that every answer is right."`
	NATS     natsCmd     `cmd:"" name:"nats" help:"One server of a NATS cluster, for campaigns."`
	Box      boxCmd      `cmd:"" hidden:""`
	Record   recordCmd   `cmd:"" help:"Run a command in a terminal and draw what it shows, as SVG."`
	Trace    traceCmd    `cmd:"" help:"Continue a prompt and draw its rounds on one clock, for Perfetto."`
}

// app holds what every command needs to run.
type app struct {
	stdout, stderr io.Writer
	ctx            context.Context // ends with a signal
}

func main() {
	if os.Getenv("GOMAXPROCS") == "" { // as in tandem: arithmetic has threads of its own
		runtime.GOMAXPROCS(max(1, runtime.NumCPU()/2))
	}
	roles.BoundGo(0)
	gguf.Carry(models.Files())
	os.Exit(run(os.Args[1:]))
}

// run runs one command line and returns the exit code: 0, 1 for a failure, 2 for a wrong value or usage, 3 for what
// cannot be had on this machine, 130 after a signal.
func run(args []string) int {
	parser, err := newParser()
	if err != nil {
		return report(os.Stderr, err)
	}
	parsed, err := parser.Parse(args)
	if err != nil {
		report(os.Stderr, err)
		return 2
	}
	ctx, release := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer release()
	err = parsed.Run(&app{os.Stdout, os.Stderr, ctx})
	if err != nil && ctx.Err() != nil {
		return 128 + int(syscall.SIGINT)
	}
	return report(os.Stderr, err)
}

func newParser() (*kong.Kong, error) {
	return kong.New(new(cli), kong.Name("tandem-lab"), kong.Description("Measures tandem for its developers."),
		kong.Vars{"faults": faultKinds()}, kong.Vars(settings.Words()),
		kong.WithHyphenPrefixedParameters(true), // of --up
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, FlagsLast: true}))
}

// report prints err as one line and returns its exit code.
func report(w io.Writer, err error) int {
	if err == nil {
		return 0
	}
	fmt.Fprintln(w, "tandem-lab: "+terminal.OneLine(err.Error()))
	if errors.As(err, new(skipped)) {
		return exitSkipped
	}
	if errors.Is(err, tandem.Invalid) {
		return 2
	}
	return 1
}

// open loads a model and shows its progress.
func (a *app) open(path string, o engine.Options) (*engine.Model, error) {
	return terminal.Open(a.stderr, path, o, engine.Open)
}

// output is the flag of every command that prints a result.
type output struct {
	JSON bool `name:"json" help:"Print the result as JSON."`
}

// show prints a result as JSON or as text.
func (o output) show(a *app, r interface{ Print(to io.Writer) error }) error {
	if o.JSON {
		return terminal.PrintJSON(a.stdout, r)
	}
	return r.Print(terminal.Printable{To: a.stdout})
}
