package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"time"
)

// Mix says how much of what the random scenarios have.
type Mix struct {
	// BadConfig is the share of scenarios whose configuration has something wrong, OddText that of values
	// written in an unusual way.
	BadConfig, OddText float64
	// Themes: memory, allocatable memory, nodefs, imagefs, containerfs, pid.
	Themes [6]float64
	// Local is the share of scenarios with limits on local storage that matter.
	Local float64
	// Steps and Pods are weights of numbers: index 0 is one step, or no pod.
	Steps, Pods []float64
	// Times is the share of steps whose times are chosen to hit boundaries.
	Times float64
	// Errors is the chance of each kind of error in a step; Missing that of a missing value; Huge of one beyond int64.
	Errors, Missing, Huge float64
	// Rich is the share of pods with anything but plain containers; Ties of pods like another.
	Rich, Ties float64
	// Gates is the share of scenarios with feature gates.
	Gates float64
	// Crash allows what makes the kubelet's code panic.
	Crash bool
}

var mixes = map[string]Mix{
	"general": {
		BadConfig: 0.06, OddText: 0.2, Themes: [6]float64{3, 1, 3, 2, 1, 1.2}, Local: 0.22,
		Steps: []float64{4, 4, 4, 3, 1.5, 1}, Pods: []float64{0.5, 2, 4, 5, 4, 3, 2, 1.5, 1, 0.7, 0.5, 0.4, 0.3, 0.3, 0.3}, Times: 0.35,
		Errors: 0.025, Missing: 0.02, Huge: 0.004, Rich: 0.45, Ties: 0.12, Gates: 0.08,
	},
	"config": {
		BadConfig: 0.4, OddText: 0.75, Themes: [6]float64{3, 2, 3, 2, 2, 2}, Local: 0.1,
		Steps: []float64{4, 4, 1}, Pods: []float64{0.5, 4, 4, 2}, Times: 0.3,
		Errors: 0.01, Missing: 0.01, Huge: 0.01, Rich: 0.3, Ties: 0.05, Gates: 0.15,
	},
	"disk": {
		BadConfig: 0.01, OddText: 0.15, Themes: [6]float64{0.4, 0.1, 4, 4, 3, 0.3}, Local: 0.15,
		Steps: []float64{3, 4, 4, 2}, Pods: []float64{0.3, 2, 4, 5, 4, 3, 2, 1, 1}, Times: 0.25,
		Errors: 0.04, Missing: 0.04, Huge: 0.004, Rich: 0.5, Ties: 0.1, Gates: 0.15,
	},
	"local": {
		BadConfig: 0.01, OddText: 0.45, Themes: [6]float64{1, 0.2, 1, 1, 0.3, 0.2}, Local: 1,
		Steps: []float64{4, 4, 1}, Pods: []float64{0, 3, 5, 4, 3, 2, 1}, Times: 0.1,
		Errors: 0.02, Missing: 0.05, Huge: 0.008, Rich: 0.6, Ties: 0.05, Gates: 0.06,
	},
	"steps": {
		BadConfig: 0.01, OddText: 0.1, Themes: [6]float64{4, 1, 2, 1, 0.5, 2}, Local: 0.08,
		Steps: []float64{0, 0, 2, 3, 4, 5}, Pods: []float64{0.3, 1, 3, 4, 4, 3, 2}, Times: 0.85,
		Errors: 0.04, Missing: 0.02, Huge: 0.002, Rich: 0.25, Ties: 0.03, Gates: 0.03,
	},
	"ranking": {
		BadConfig: 0.005, OddText: 0.25, Themes: [6]float64{4, 1, 2, 1, 1, 3}, Local: 0.03,
		Steps: []float64{2, 3, 3, 1}, Pods: []float64{0, 0, 2, 4, 5, 6, 6, 5, 4, 3, 3, 3, 2, 2, 2}, Times: 0.05,
		Errors: 0.01, Missing: 0.06, Huge: 0.01, Rich: 0.8, Ties: 0.2, Gates: 0.1,
	},
}

// blend is the mix of mixes.
var blend = []string{"config", "disk", "local", "steps", "ranking"}

func generateCommand(args []string) error {
	flags := flag.NewFlagSet("generate", flag.ExitOnError)
	seed := flags.Uint64("seed", 1, "seed")
	count := flags.Int("count", 100, "number of scenarios to print")
	name := flags.String("mix", "general", "general, config, disk, local, steps, ranking, blend (one after another of those but the first), or texts")
	shard := flags.String("shard", "0/1", "I/N: only every Nth scenario, from the Ith; count is that of the shard")
	least := flags.Int("least", 28, "least number of runs of a scenario")
	most := flags.Int("most", 1600, "largest number of runs of a scenario")
	widest := flags.Int("outcomes", 60, "drop a scenario with more outcomes")
	crash := flags.Bool("crash", false, "print instead the scenarios that make the kubelet's code panic, with its text")
	_ = flags.Parse(args)
	if _, known := mixes[*name]; !known && *name != "blend" && *name != "texts" {
		return fmt.Errorf("no mix %q", *name)
	}
	var index, stride uint64
	if _, err := fmt.Sscanf(*shard, "%d/%d", &index, &stride); err != nil || stride == 0 {
		return fmt.Errorf("shard %q", *shard)
	}
	out := bufio.NewWriterSize(os.Stdout, 1<<20)
	defer out.Flush()
	var kept, dull, panics, revived, wild, runs int
	for ; kept < *count; index += stride {
		m := maker{rand.New(rand.NewPCG(*seed, index))}
		which := *name
		if which == "blend" {
			which = blend[index%uint64(len(blend))]
		}
		mix := mixes[which]
		if *crash {
			mix.Crash, mix.BadConfig, mix.Missing = true, 0, 0.1
		}
		title := fmt.Sprintf("random-%d-%d-%s", *seed, index, which)
		var raw []byte
		if which == "texts" {
			raw = m.textScenario(title)
		} else {
			raw = m.scenario(title, mix)
		}
		scenario := &Scenario{}
		if err := json.Unmarshal(raw, scenario); err != nil {
			return fmt.Errorf("%s: %w", raw, err)
		}
		result, err := Explore(scenario, rand.New(rand.NewPCG(*seed+1, index)), Limits{Least: *least, Most: *most})
		if err != nil {
			return fmt.Errorf("%s: %w", raw, err)
		}
		runs += result.Runs
		switch {
		case result.Panic != "":
			panics++
			if *crash {
				line, _ := json.Marshal(map[string]any{"scenario": json.RawMessage(raw), "panic": result.Panic})
				fmt.Fprintf(out, "%s\n", line)
				kept++
			}
			continue
		case *crash:
			continue
		case result.Revived:
			revived++
			continue
		case !result.Converged || len(result.Outcomes) > *widest:
			wild++
			continue
		case !result.Interesting && m.chance(0.8):
			dull++
			continue
		}
		kept++
		out.Write(encode(pair{raw, result.Outcomes}))
		out.WriteByte('\n')
	}
	fmt.Fprintf(os.Stderr, "%d kept in %d runs; left out: %d dull, %d with too much chance, %d listing pods that were gone, %d panics\n", kept, runs, dull, wild, revived, panics)
	return nil
}

type object = map[string]any

var themes = [6][]string{
	{"memory.available"}, {"allocatableMemory.available"},
	{"nodefs.available", "nodefs.inodesFree"}, {"imagefs.available", "imagefs.inodesFree"}, {"containerfs.available", "containerfs.inodesFree"},
	{"pid.available"},
}

var signals = []string{
	"memory.available", "allocatableMemory.available", "nodefs.available", "nodefs.inodesFree", "imagefs.available", "imagefs.inodesFree",
	"containerfs.available", "containerfs.inodesFree", "pid.available",
}

// world is a scenario in the making.
type world struct {
	maker
	mix      Mix
	config   object
	dedicate bool
	split    bool
	capacity map[string]int64
	bounds   map[string][]int64 // per signal: values at which something changes
	spans    []int64            // nanoseconds after which something changes
	isolated bool
	local    bool
	byMemory bool
	diskish  bool
	pods     []object
	usage    []*podUsage
	steps    []object
}

func (m maker) scenario(name string, mix Mix) []byte {
	w := &world{maker: m, mix: mix, capacity: map[string]int64{}, bounds: map[string][]int64{}}
	switch m.weighted(5, 3, 2, 0.4) {
	case 1:
		w.dedicate = true
	case 2:
		w.dedicate, w.split = true, true
	case 3:
		w.split = true
	}
	w.local = m.chance(mix.Local)
	w.makeCapacities()
	w.makeConfig()
	w.makePods()
	w.makeSteps()
	return encode(object{
		"name":                 name,
		"kubeletConfiguration": w.config,
		"filesystems":          object{"dedicatedImageFs": w.dedicate, "splitImageFs": w.split},
		"pods":                 w.pods,
		"steps":                w.steps,
	})
}

const (
	ki = int64(1) << 10
	mi = int64(1) << 20
	gi = int64(1) << 30
)

func (w *world) makeCapacities() {
	w.capacity["memory.available"] = one(w.maker, 8*gi, 16*gi, 4*gi, 32*gi, 10_000_000_000, 1_000_000_000_000, 7*gi+12345, 1000)
	w.capacity["allocatableMemory.available"] = one(w.maker, 6*gi, w.capacity["memory.available"], 8*gi-100*mi, 10_000_000_000, 999)
	disk := one(w.maker, 100*gi, 50*gi, 1_000_000_000_000, 20_000_000_000, 64*gi+4097, 10_000, 40*gi)
	inodes := one[int64](w.maker, 1_000_000, 6_553_600, 100_000, 3_276_800, 999_983, 50_000_000)
	for _, fs := range []string{"nodefs", "imagefs", "containerfs"} {
		if w.chance(0.4) {
			disk = one(w.maker, 100*gi, 200*gi, 1_000_000_000_000, 30*gi+1)
		}
		if w.chance(0.4) {
			inodes = one[int64](w.maker, 1_000_000, 6_553_600, 13_107_200)
		}
		w.capacity[fs+".available"] = disk
		w.capacity[fs+".inodesFree"] = inodes
	}
	w.capacity["pid.available"] = one[int64](w.maker, 32768, 4194304, 1000, 100_000, 65536)
}

// moment is a time as JSON.
func (w *world) moment(t time.Time) string {
	if w.chance(0.06) {
		t = t.In(time.FixedZone("", one(w.maker, 3600, -5*3600, 19800, 14*3600)))
	}
	return t.Format(time.RFC3339Nano)
}
