// Command tandem generates text with speculative decoding split into three processes. See README.md.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/alecthomas/kong"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/app/talk/console"
	"github.com/tandem-llm/tandem/app/terminal"
	"github.com/tandem-llm/tandem/kernels/stream"
	"github.com/tandem-llm/tandem/modelfile/gguf"
	"github.com/tandem-llm/tandem/models"
	"github.com/tandem-llm/tandem/processes/roles"
	"github.com/tandem-llm/tandem/processes/settings"
	"github.com/tandem-llm/tandem/processes/settings/config"
	"github.com/tandem-llm/tandem/services/peers/supervise"
)

// cli is the command line. A flag tagged `setting:"-"` belongs to one call; all others can also be set
// by the environment and the configuration file.
type cli struct {
	Config  string      `help:"YAML file of settings (TANDEM_CONFIG)." placeholder:"FILE"`
	Set     []string    `help:"Set what is not listed here: tandem config --all." placeholder:"KEY=VALUE" sep:"none" setting:"-"`
	Printed versionFlag `name:"version" help:"Print the version." setting:"-"`

	Chat       runCmd        `cmd:"" name:"run" help:"Chat in the terminal, or have your text continued."`
	Pull       pullCmd       `cmd:"" help:"Fetch a model by name."`
	List       listCmd       `cmd:"" aliases:"ls" help:"List the models that are here, by name."`
	Show       showCmd       `cmd:"" help:"Show what a model is, and whether it runs here."`
	Rm         rmCmd         `cmd:"" help:"Remove models that tandem has pulled."`
	Up         upCmd         `cmd:"" help:"Serve a model until stopped: gateway, drafter and verifier."`
	Launch     launchCmd     `cmd:"" help:"Run an agent, such as claude, with a model of yours."`
	Generate   generateCmd   `cmd:"" help:"Continue a prompt with processes of its own."`
	Demo       demoCmd       `cmd:"" help:"Show one prompt with and without speculation."`
	Ps         psCmd         `cmd:"" help:"List the processes behind a running gateway."`
	Top        topCmd        `cmd:"" help:"Show the activity of a running gateway and its processes."`
	Bench      benchCmd      `cmd:"" help:"Measure speed: does speculation pay here?"`
	Profile    profileCmd    `cmd:"" help:"Measure once what passes cost and drafts save here."`
	Model      modelCmd      `cmd:"" help:"Inspect and convert model files."`
	Cache      cacheCmd      `cmd:"" help:"List and clear the files that tandem has made and keeps."`
	ShowConfig showConfigCmd `cmd:"" name:"config" help:"Print the effective settings and their origins."`
	Gateway    gatewayCmd    `cmd:"" help:"Run a gateway alone."`
	Drafter    drafterCmd    `cmd:"" help:"Run a drafter alone."`
	Verifier   verifierCmd   `cmd:"" help:"Run a verifier alone."`
	Survey     surveyCmd     `cmd:"" hidden:"" help:"Measure where models are fastest, for up."`
	Health     healthCmd     `cmd:"" help:"Ask whether a process serves: exit code 0, else 1."`
	Drain      drainCmd      `cmd:"" help:"Have a process finish its sessions and take no new ones."`
	NATSConfig natsConfigCmd `cmd:"" name:"nats-config" help:"Print who may do what at a NATS server of yours."`
	Tokenize   tokenizeCmd   `cmd:"" help:"Turn text into token ids."`
	Logits     logitsCmd     `cmd:"" hidden:"" help:"Print top logits and a greedy continuation."`
	Completion completionCmd `cmd:"" help:"Print the completion script of a shell."`
	Complete   completeCmd   `cmd:"" name:"__complete" hidden:""`
	Version    versionCmd    `cmd:"" help:"Print the version."`
}

// app holds what every command needs to run.
type app struct {
	stdin          *os.File
	stdout, stderr io.Writer
	ctx            context.Context     // ends with the first signal; its cause is a stopSignal
	force          context.Context     // ends with the second signal: stop at once
	interrupts     *console.Interrupts // what SIGINT does instead of stopping, while a command has set it
	kong           *kong.Context
	settings       *config.Resolver
	told           bool // outdated has been said
}

// stopSignal is the cancellation cause of a context that a signal ended.
type stopSignal struct{ syscall.Signal }

func (s stopSignal) Error() string { return "stopped by signal: " + s.Signal.String() }

func main() {
	// Arithmetic has threads of its own. Go code runs in short pieces between them, and is faster on few
	// processors: every goroutine that wakes another would otherwise wake a thread on another core too.
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(max(1, runtime.NumCPU()/2))
	}
	roles.BoundGo(0)
	gguf.Carry(models.Files())
	os.Exit(run(os.Args[1:]))
}

// run runs one command line and returns the exit code: 0, 1 for a failure, 75 for one that another try may not meet, 2 for a wrong value or
// usage, 128+n after signal n. Commands that serve end with 0 after a signal, and launch with the exit code of its program.
func run(args []string) int {
	from := config.NewResolver(os.LookupEnv)
	parser, err := newParser(from, args...)
	if err != nil {
		return report(os.Stderr, err)
	}
	parsed, err := readLine(parser, from, args)
	if err != nil {
		report(os.Stderr, err)
		return 2
	}
	chats := new(console.Interrupts)
	ctx, force, release := untilSignals(chats)
	defer release()
	a := &app{os.Stdin, os.Stdout, os.Stderr, ctx, force, chats, parsed, from, false}
	err = parsed.Run(a)
	if err == nil {
		a.outdated(settings.Quiet)
	}
	var sig stopSignal
	var status exitStatus
	if errors.As(context.Cause(ctx), &sig) && err != nil {
		if slices.Contains(serving, parsed.Command()) && stopped(err) {
			return 0
		}
		return 128 + int(sig.Signal)
	}
	if errors.As(err, &status) {
		return int(status)
	}
	return report(os.Stderr, err)
}

// readLine reads a command line.
func readLine(parser *kong.Kong, from *config.Resolver, args []string) (*kong.Context, error) {
	parsed, err := parser.Parse(args)
	if wrong := from.Err(); wrong != nil {
		return nil, wrong
	}
	if err == nil && parsed.Selected() != nil {
		err = settings.Check(parsed.Selected().Target.Addr().Interface())
	}
	if err == nil {
		err = oneAddress(parsed, from)
	}
	return parsed, plainly(err)
}

// outdated says what on the command line is written otherwise from the next release on, once: when a process serves, or at the end of a
// command that has not failed. A command that fails says why, and nothing else. l is how the command logs.
func (a *app) outdated(l settings.Logging) {
	lines := config.Old(a.kong)
	switch line := strings.Join(lines, "; "); {
	case a.told || len(lines) == 0:
	case l.LogFormat == settings.JSONLines:
		l.Logger(a.stderr, a.kong.Command()).Warn(line)
	default:
		a.say("tandem: %s", line)
	}
	a.told = true
}

// serving are the commands that run until they are told to stop: a signal is their usual end, also while
// they load.
var serving = []string{"up", "gateway", "drafter", "verifier"}

// stopped reports whether err only says that the command was stopped.
func stopped(err error) bool {
	return errors.As(err, new(stopSignal)) || errors.Is(err, context.Canceled) || tandem.KindOf(err) == tandem.Canceled
}

// rawString reads a string flag byte for byte; kong's own mapper would replace invalid UTF-8.
func rawString(ctx *kong.DecodeContext, target reflect.Value) error {
	t, err := ctx.Scan.PopValue("string")
	if err != nil {
		return err
	}
	target.SetString(fmt.Sprint(t.Value))
	return nil
}

// number is kong's mapper of a type of numbers, and takes negative ones behind a space too, such as --max-tokens -1.
func number(t reflect.Type) kong.Mapper {
	kongs := kong.NewRegistry().RegisterDefaults().ForType(t)
	return kong.MapperFunc(func(ctx *kong.DecodeContext, target reflect.Value) error {
		if text, ok := ctx.Scan.Peek().Value.(string); ok && strings.HasPrefix(text, "-") {
			if _, err := strconv.ParseFloat(text, 64); err == nil {
				ctx.Scan.Pop()
				ctx.Scan.PushTyped(text, kong.FlagValueToken)
			}
		}
		return kongs.Decode(ctx, target)
	})
}

// rawStrings is rawString for lists.
func rawStrings(ctx *kong.DecodeContext, target reflect.Value) error {
	var values []any
	if ctx.Value.Flag == nil {
		for _, t := range ctx.Scan.PopWhile(func(t kong.Token) bool { return t.IsValue() }) {
			values = append(values, t.Value)
		}
	} else if t, err := ctx.Scan.PopValue("string"); err != nil {
		return err
	} else if list, ok := t.Value.([]any); ok { // of a file
		values = list
	} else {
		for _, v := range kong.SplitEscaped(fmt.Sprint(t.Value), ctx.Value.Tag.Sep) {
			values = append(values, v)
		}
	}
	for _, v := range values {
		target.Set(reflect.Append(target, reflect.ValueOf(fmt.Sprint(v))))
	}
	return nil
}

// report prints err as one line and returns its exit code.
func report(w io.Writer, err error) int {
	if err == nil {
		return 0
	}
	fmt.Fprintln(w, "tandem: "+terminal.OneLine(err.Error()))
	switch {
	case errors.Is(err, tandem.Invalid):
		return 2
	case errors.As(err, new(*stream.Fault)): // a packed file that was wrong has been removed
		return supervise.TryAgain
	}
	return 1
}

// untilSignals returns a context that ends with the first SIGINT, SIGTERM or SIGHUP and one that ends
// with the second; a SIGINT that chats handles does not count. A closed pipe on stdout becomes a write error instead of
// killing the process, which would leave files and children behind.
func untilSignals(chats *console.Interrupts) (ctx, force context.Context, release func()) {
	ctx, stop := context.WithCancelCause(context.Background())
	force, kill := context.WithCancel(context.Background())
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	pipe := make(chan os.Signal, 1)
	signal.Notify(pipe, syscall.SIGPIPE)
	done := make(chan struct{})
	go func() {
		for n := 0; ; n++ {
			select {
			case s := <-signals:
				if s == syscall.SIGINT && chats.Taken() {
					n--
				} else if n == 0 {
					stop(stopSignal{s.(syscall.Signal)})
				} else {
					kill()
				}
			case <-done:
				return
			}
		}
	}()
	return ctx, force, func() {
		signal.Stop(signals)
		close(done)
		stop(nil)
		kill()
	}
}
