// Command collector is an OTLP collector for tests in containers: it listens where Jaeger would, and prints every span as a line of JSON.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/tandem-llm/tandem/services/peers/telemetry/collectortest"
)

func main() {
	c, err := collectortest.StartAt("0.0.0.0:4317")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	out := json.NewEncoder(os.Stdout)
	for printed := 0; ; time.Sleep(100 * time.Millisecond) {
		for _, s := range c.Spans()[printed:] {
			if err := out.Encode(s); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
			printed++
		}
	}
}
