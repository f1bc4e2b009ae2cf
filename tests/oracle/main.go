// Oracle runs the kubelet's own eviction manager on scenario files.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"strings"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
)

const usage = `usage:
  oracle run [--check] [--plain] FILE|DIR|-...   print each scenario with every outcome seen; --check
                                                 compares with the expected outcomes of the input instead
  oracle time [--passes N] FILE|DIR|-...          how long passes over the first step of a scenario take
  oracle generate --seed N --count N [--mix NAME] [--shard I/N] [--crash]
"oracle run -h", "oracle time -h" and "oracle generate -h" list all flags.
`

func main() {
	klog.SetLogger(logr.Discard())
	if len(os.Args) < 2 {
		fmt.Fprint(os.Stderr, usage)
		os.Exit(2)
	}
	var err error
	switch os.Args[1] {
	case "run":
		err = runCommand(os.Args[2:])
	case "time":
		err = timeCommand(os.Args[2:])
	case "generate":
		err = generateCommand(os.Args[2:])
	default:
		fmt.Fprint(os.Stderr, usage)
		os.Exit(2)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

// pair is one object of a scenario file.
type pair struct {
	Scenario json.RawMessage   `json:"scenario"`
	Expected []json.RawMessage `json:"expected"`
}

func runCommand(args []string) error {
	flags := flag.NewFlagSet("run", flag.ExitOnError)
	check := flags.Bool("check", false, "compare with the expected outcomes of the input")
	seed := flags.Uint64("seed", 1, "seed of the order of pods and of maps")
	least := flags.Int("least", 48, "least number of runs")
	most := flags.Int("most", 4000, "largest number of runs")
	plain := flags.Bool("plain", false, "leave the order of maps to Go: rare outcomes stay rare")
	_ = flags.Parse(args)
	out := bufio.NewWriterSize(os.Stdout, 1<<20)
	defer out.Flush()
	wrong, all := 0, 0
	for _, path := range flags.Args() {
		err := each(path, func(name string, input pair) error {
			all++
			scenario := &Scenario{}
			if err := json.Unmarshal(input.Scenario, scenario); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			result, err := Explore(scenario, rand.New(rand.NewPCG(*seed, uint64(all))), Limits{*least, *most, *plain})
			if err != nil {
				return fmt.Errorf("%s: %s: %w", name, scenario.Name, err)
			}
			if result.Panic != "" {
				fmt.Fprintf(os.Stderr, "%s: %s: the kubelet's code panics: %s\n", name, scenario.Name, result.Panic)
				wrong++
				return nil
			}
			if !result.Converged {
				fmt.Fprintf(os.Stderr, "%s: %s: still new outcomes after %d runs (%d so far)\n", name, scenario.Name, result.Runs, len(result.Outcomes))
			}
			if *check {
				if text := difference(input.Expected, result.Outcomes); text != "" {
					wrong++
					fmt.Fprintf(out, "%s: %s: %s\n", name, scenario.Name, text)
				}
				return nil
			}
			return json.NewEncoder(out).Encode(pair{input.Scenario, result.Outcomes})
		})
		if err != nil {
			return err
		}
	}
	if *check {
		fmt.Fprintf(out, "%d of %d as expected\n", all-wrong, all)
	}
	if wrong > 0 {
		out.Flush()
		return errors.New("some scenarios failed")
	}
	return nil
}

// each reads whole JSON values, one after another, from a file, all files of a directory, or standard input.
func each(path string, use func(name string, input pair) error) error {
	if info, err := os.Stat(path); path != "-" && err == nil && info.IsDir() {
		return filepath.WalkDir(path, func(file string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || !(strings.HasSuffix(file, ".json") || strings.HasSuffix(file, ".jsonl")) {
				return err
			}
			return each(file, use)
		})
	}
	source := os.Stdin
	if path != "-" {
		file, err := os.Open(path)
		if err != nil {
			return err
		}
		defer file.Close()
		source = file
	}
	decoder := json.NewDecoder(bufio.NewReaderSize(source, 1<<20))
	for {
		var input pair
		if err := decoder.Decode(&input); err == io.EOF {
			return nil
		} else if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		if input.Scenario == nil {
			return fmt.Errorf("%s: no scenario", path)
		}
		if err := use(path, input); err != nil {
			return err
		}
	}
}

// difference compares two sets of outcomes as the format says.
func difference(expected, seen []json.RawMessage) string {
	var text []string
	for _, e := range expected {
		if !contains(seen, e) {
			text = append(text, "expected but not seen: "+string(e))
		}
	}
	for _, s := range seen {
		if !contains(expected, s) {
			text = append(text, "seen but not expected: "+string(s))
		}
	}
	return strings.Join(text, "\n  ")
}

func contains(set []json.RawMessage, one json.RawMessage) bool {
	for _, other := range set {
		if reflect.DeepEqual(normal(other), normal(one)) {
			return true
		}
	}
	return false
}

// normal decodes an outcome so that absent and zero are the same, and a text that does not count is left out.
func normal(raw json.RawMessage) Outcome {
	var outcome Outcome
	if err := json.Unmarshal(raw, &outcome); err != nil {
		panic(err)
	}
	if outcome.ConfigError != nil && outcome.ConfigErrorStage != stageThresholds {
		empty := ""
		outcome.ConfigError = &empty
	}
	for i := range outcome.Steps {
		step := &outcome.Steps[i]
		step.NodeConditions = append([]string{}, step.NodeConditions...)
		step.Reclaim = append([]string{}, step.Reclaim...)
		step.Evictions = append([]Eviction{}, step.Evictions...)
		step.Events = append([]Event{}, step.Events...)
		for j := range step.Evictions {
			step.Evictions[j].Conditions = append([]Condition{}, step.Evictions[j].Conditions...)
		}
	}
	return outcome
}
