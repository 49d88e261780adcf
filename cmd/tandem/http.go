package main

import (
	"fmt"
	"net"
	"reflect"
	"slices"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/processes/settings/config"
)

// oneAddress refuses --host and --port beside an --http of the same command line that names another host or port. They override that of
// the environment or the file, as all flags do. Errors: Invalid.
func oneAddress(ctx *kong.Context, from *config.Resolver) error {
	said := map[string]string{}
	for _, f := range ctx.Flags() {
		if o := from.Origin(ctx, f); slices.Contains([]string{"http", "host", "port"}, f.Name) && (o == "flag" || o == "--set") {
			said[f.Name] = fmt.Sprint(reflect.Indirect(reflect.ValueOf(ctx.FlagValue(f))))
		}
	}
	host, port, err := net.SplitHostPort(said["http"])
	if err != nil {
		return nil // not there, or settle and the listener say what is wrong with it
	}
	at := map[string]string{"host": host, "port": port}
	for _, name := range []string{"host", "port"} {
		if other, ok := said[name]; ok && at[name] != "" && strings.Trim(other, "[]") != at[name] {
			at[name] = strings.Trim(other, "[]")
			return tandem.Errorf("", tandem.Invalid, "--%s %s with --http %s: want one of them, as in --http %s", name, other, said["http"],
				net.JoinHostPort(at["host"], at["port"]))
		}
	}
	return nil
}
