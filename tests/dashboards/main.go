// Reads dashboards by Grafana's own schema: an unknown key or a missing one is an error.
package main

import (
	"fmt"
	"os"

	"github.com/grafana/grafana-foundation-sdk/go/cog/plugins"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
)

func main() {
	plugins.RegisterDefaultPlugins()
	failed := false
	for _, file := range os.Args[1:] {
		if err := read(file); err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", file, err)
			failed = true
		}
	}
	if failed {
		os.Exit(1)
	}
}

func read(file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var board dashboard.Dashboard
	for _, err := range []error{board.UnmarshalJSONStrict(text), board.Validate()} {
		// A list of errors, which may be empty.
		if err != nil && err.Error() != "" {
			return err
		}
	}
	return nil
}
