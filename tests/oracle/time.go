package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
	"k8s.io/kubernetes/pkg/kubelet/eviction"
	testingclock "k8s.io/utils/clock/testing"
)

// period is the time between two looks of the kubelet.
const period = 10 * time.Second

// Timed is how long the passes over a scenario took.
type Timed struct {
	Name string `json:"name"`
	// Evictions in all of the passes that were timed.
	Evictions int     `json:"evictions"`
	Nanos     []int64 `json:"nanos"`
}

func timeCommand(args []string) error {
	flags := flag.NewFlagSet("time", flag.ExitOnError)
	passes := flags.Int("passes", 100, "how many passes are timed")
	warm := flags.Int("warm", 2, "how many go before them")
	_ = flags.Parse(args)
	if *passes < 1 || *warm < 0 {
		return errors.New("--passes must be at least 1 and --warm at least 0")
	}
	for _, path := range flags.Args() {
		err := each(path, func(name string, input pair) error {
			scenario := &Scenario{}
			if err := json.Unmarshal(input.Scenario, scenario); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			timed, err := timePasses(scenario, *warm, *passes)
			if err != nil {
				return fmt.Errorf("%s: %s: %w", name, scenario.Name, err)
			}
			return json.NewEncoder(os.Stdout).Encode(timed)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// timePasses has a manager look at the first step of a scenario again and again. What it asks for is
// there at once and what it tells costs nothing: the time is that of its pass alone. A
// pod that it kills is there again in the next pass, so that each decides the same.
func timePasses(scenario *Scenario, warm, passes int) (*Timed, error) {
	if err := scenario.Validate(); err != nil {
		return nil, err
	}
	if len(scenario.Steps) == 0 || scenario.Steps[0].Summary == nil {
		return nil, errors.New("its first step has no summary")
	}
	config, failure, err := loadConfig(background, scenario.KubeletConfiguration)
	if err != nil {
		return nil, err
	}
	if failure != nil {
		return nil, errors.New(failure.text)
	}
	parsed, err := thresholdsOf(config, rand.New(rand.NewPCG(1, 1)))
	if err != nil {
		return nil, err
	}
	eviction.OraclePick = nil
	step := &scenario.Steps[0]
	still := &standstill{summary: step.Summary}
	clock := testingclock.NewFakeClock(step.At)
	node := &v1.ObjectReference{Kind: "Node", Name: "node", UID: "node"}
	manager, _ := eviction.NewManager(still, parsed, still.kill, still, still, still, node, clock, config.LocalStorageCapacityIsolation)
	timed := &Timed{Name: scenario.Name, Nanos: make([]int64, 0, passes)}
	for i := range warm + passes {
		if i == warm {
			still.evictions = 0
		}
		at := step.At.Add(time.Duration(i) * period)
		clock.SetTime(at)
		still.stamp(metav1.NewTime(at))
		start := time.Now()
		_, err := eviction.OraclePass(background, manager, still, func() []*v1.Pod { return scenario.Pods })
		took := time.Since(start)
		if err != nil {
			return nil, err
		}
		if i >= warm {
			timed.Nanos = append(timed.Nanos, took.Nanoseconds())
		}
	}
	timed.Evictions = still.evictions
	return timed, nil
}

// standstill is all that the manager talks to: a node that is always the same.
type standstill struct {
	summary   *stats.Summary
	evictions int
}

// stamp sets the time of the statistics of the node: statistics as old as the last ones meet no threshold.
func (s *standstill) stamp(at metav1.Time) {
	node := &s.summary.Node
	if node.Memory != nil {
		node.Memory.Time = at
	}
	for i := range node.SystemContainers {
		if memory := node.SystemContainers[i].Memory; memory != nil {
			memory.Time = at
		}
	}
	disks := []*stats.FsStats{node.Fs}
	if node.Runtime != nil {
		disks = append(disks, node.Runtime.ImageFs, node.Runtime.ContainerFs)
	}
	for _, disk := range disks {
		if disk != nil {
			disk.Time = at
		}
	}
	if node.Rlimit != nil {
		node.Rlimit.Time = at
	}
}

func (s *standstill) HasDedicatedImageFs(context.Context) (bool, error)     { return false, nil }
func (s *standstill) HasDedicatedContainerFs(context.Context) (bool, error) { return false, nil }

func (s *standstill) Get(context.Context, bool) (*stats.Summary, error) { return s.summary, nil }

func (s *standstill) GetCPUAndMemoryStats(context.Context) (*stats.Summary, error) {
	return s.summary, nil
}

func (s *standstill) DeleteUnusedImages(context.Context) error        { return nil }
func (s *standstill) DeleteAllUnusedContainers(context.Context) error { return nil }

func (s *standstill) kill(*v1.Pod, bool, *int64, func(*v1.PodStatus)) error {
	s.evictions++
	return nil
}

func (s *standstill) Event(runtime.Object, string, string, string)          {}
func (s *standstill) Eventf(runtime.Object, string, string, string, ...any) {}
func (s *standstill) AnnotatedEventf(runtime.Object, map[string]string, string, string, string, ...any) {
}
