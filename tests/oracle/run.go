package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/go-logr/logr"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
	kubeletconfig "k8s.io/kubernetes/pkg/kubelet/apis/config"
	"k8s.io/kubernetes/pkg/kubelet/eviction"
	"k8s.io/kubernetes/pkg/kubelet/lifecycle"
	testingclock "k8s.io/utils/clock/testing"
)

// Result is what is known about a scenario after many runs.
type Result struct {
	Outcomes  []json.RawMessage
	Runs      int
	Converged bool
	// Interesting: something was evicted, reclaimed, refused or met.
	Interesting bool
	// Revived: a list of active pods named a pod that was gone by then.
	Revived bool
	Panic   string
}

// Limits say how often a scenario is run.
type Limits struct {
	Least, Most int
	// Plain leaves the order of maps to Go.
	Plain bool
}

// patience is the number of runs after which no further outcome is expected.
func (l Limits) patience(outcomes, newest, widest int) int {
	return max(l.Least, 4*newest, 14*outcomes, 12*widest)
}

var background = klog.NewContext(context.Background(), logr.Discard())

// Explore runs a scenario until no new outcome is to be expected.
func Explore(scenario *Scenario, random *rand.Rand, limits Limits) (result Result, err error) {
	if err := scenario.Validate(); err != nil {
		return Result{}, err
	}
	defer func() {
		if problem := recover(); problem != nil {
			result.Panic = fmt.Sprint(problem)
		}
	}()
	config, failure, err := loadConfig(background, scenario.KubeletConfiguration)
	if err != nil {
		return Result{}, err
	}
	if failure != nil {
		outcome := Outcome{Name: scenario.Name, ConfigError: &failure.text, ConfigErrorStage: failure.stage, Steps: []StepResult{}}
		return Result{Outcomes: []json.RawMessage{encode(outcome)}, Runs: 1, Converged: true, Interesting: true}, nil
	}
	eviction.OraclePick = random.IntN
	if limits.Plain {
		eviction.OraclePick = nil
	}
	eviction.OracleWidest = 0
	seen := map[string]bool{}
	newest := 0
	for {
		once := run{scenario: scenario, random: random}
		outcome := once.whole(config)
		result.Runs++
		result.Interesting = result.Interesting || once.interesting || outcome.ConfigError != nil
		result.Revived = result.Revived || once.revived
		text := string(encode(outcome))
		if !seen[text] {
			seen[text] = true
			newest = result.Runs
		}
		widest := eviction.OracleWidest
		if outcome.ConfigError != nil {
			widest = 4
		}
		if result.Runs >= limits.patience(len(seen), newest, widest) {
			result.Converged = true
			break
		}
		if result.Runs >= limits.Most {
			break
		}
	}
	for _, text := range slices.Sorted(maps.Keys(seen)) {
		result.Outcomes = append(result.Outcomes, json.RawMessage(text))
	}
	return result, nil
}

func encode(v any) []byte {
	var buffer bytes.Buffer
	encoder := json.NewEncoder(&buffer)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(v); err != nil {
		panic(err)
	}
	return bytes.TrimSpace(buffer.Bytes())
}

// run is one life of a manager. It is also everything the manager talks to.
type run struct {
	scenario    *Scenario
	random      *rand.Rand
	step        *Step
	result      *StepResult
	places      map[types.UID]int
	looks       int
	annotations map[types.UID]map[string]string
	gone        map[types.UID]bool
	interesting bool
	revived     bool
}

func (r *run) whole(config *kubeletconfig.KubeletConfiguration) Outcome {
	outcome := Outcome{Name: r.scenario.Name, Steps: []StepResult{}}
	parsed, err := thresholdsOf(config, r.random)
	if err != nil {
		text := err.Error()
		outcome.ConfigError, outcome.ConfigErrorStage = &text, stageThresholds
		return outcome
	}
	pods := make([]*v1.Pod, len(r.scenario.Pods))
	byUID := map[string]*v1.Pod{}
	for i, pod := range r.scenario.Pods {
		pods[i] = pod.DeepCopy()
		byUID[string(pod.UID)] = pods[i]
	}
	r.gone = map[types.UID]bool{}
	clock := testingclock.NewFakeClock(time.Time{})
	node := &v1.ObjectReference{Kind: "Node", Name: "node", UID: "node"}
	manager, admission := eviction.NewManager(r, parsed, r.kill, r, r, r, node, clock, config.LocalStorageCapacityIsolation)
	for i := range r.scenario.Steps {
		r.step = &r.scenario.Steps[i]
		r.result = &StepResult{At: r.step.At.UTC().Format(time.RFC3339Nano), Reclaim: []string{}, Evictions: []Eviction{}, Events: []Event{}}
		r.looks = 0
		r.annotations = map[types.UID]map[string]string{}
		clock.SetTime(r.step.At)

		var active []*v1.Pod
		if r.step.ActivePods != nil {
			for _, uid := range *r.step.ActivePods {
				r.revived = r.revived || r.gone[types.UID(uid)]
				active = append(active, byUID[uid])
			}
		} else {
			for _, pod := range pods {
				if !r.gone[pod.UID] {
					active = append(active, pod)
				}
			}
		}
		r.places = map[types.UID]int{}
		for place, pod := range active {
			r.places[pod.UID] = place
		}
		// The kubelet reads its pods from a map.
		r.random.Shuffle(len(active), func(i, j int) { active[i], active[j] = active[j], active[i] })

		_, _ = eviction.OraclePass(background, manager, r, func() []*v1.Pod { return active })

		conditions := eviction.OracleConditions(manager)
		r.result.NodeConditions = make([]string, 0, len(conditions))
		for _, condition := range conditions {
			r.result.NodeConditions = append(r.result.NodeConditions, string(condition))
		}
		slices.Sort(r.result.NodeConditions)
		for _, uid := range r.step.Admit {
			answer := admission.Admit(&lifecycle.PodAdmitAttributes{Pod: byUID[uid], Operation: lifecycle.AddOperation})
			r.result.Admit = append(r.result.Admit, Admitted{uid, answer.Admit, answer.Reason, answer.Message})
			r.interesting = r.interesting || !answer.Admit
		}
		slices.SortStableFunc(r.result.Evictions, func(a, b Eviction) int { return cmp.Compare(a.place, b.place) })
		slices.SortStableFunc(r.result.Events, func(a, b Event) int { return cmp.Compare(a.place, b.place) })
		r.interesting = r.interesting || len(r.result.NodeConditions)+len(r.result.Events) > 0
		outcome.Steps = append(outcome.Steps, *r.result)
	}
	return outcome
}

func failing(text string) error {
	if text == "" {
		return nil
	}
	return errors.New(text)
}

// HasDedicatedImageFs and HasDedicatedContainerFs: eviction.DiskInfoProvider.
func (r *run) HasDedicatedImageFs(context.Context) (bool, error) {
	if err := failing(r.step.DiskInfoError); err != nil {
		return false, err
	}
	return r.scenario.Filesystems.DedicatedImageFs, nil
}

func (r *run) HasDedicatedContainerFs(context.Context) (bool, error) {
	if err := failing(r.step.ContainerFsInfoError); err != nil {
		return false, err
	}
	return r.scenario.Filesystems.SplitImageFs, nil
}

// Get and GetCPUAndMemoryStats: the provider of summaries. The second look of a pass is
// the one after node-level reclaim.
func (r *run) Get(context.Context, bool) (*stats.Summary, error) {
	r.looks++
	if r.looks == 1 {
		return r.step.Summary, failing(r.step.SummaryError)
	}
	if err := failing(r.step.SummaryAfterReclaimError); err != nil {
		return nil, err
	}
	if r.step.SummaryAfterReclaim != nil {
		return r.step.SummaryAfterReclaim, nil
	}
	return r.step.Summary, nil
}

func (r *run) GetCPUAndMemoryStats(ctx context.Context) (*stats.Summary, error) {
	return r.Get(ctx, false)
}

// DeleteUnusedImages: eviction.ImageGC.
func (r *run) DeleteUnusedImages(context.Context) error {
	r.result.Reclaim = append(r.result.Reclaim, "images")
	return failing(r.step.ImageGcError)
}

// DeleteAllUnusedContainers: eviction.ContainerGC.
func (r *run) DeleteAllUnusedContainers(context.Context) error {
	r.result.Reclaim = append(r.result.Reclaim, "containers")
	return failing(r.step.ContainerGcError)
}

func (r *run) kill(pod *v1.Pod, _ bool, grace *int64, change func(*v1.PodStatus)) error {
	status := pod.Status.DeepCopy()
	change(status)
	done := Eviction{
		UID: string(pod.UID), Name: pod.Name, Namespace: pod.Namespace,
		GracePeriodSeconds: *grace,
		Phase:              string(status.Phase), Reason: status.Reason, Message: status.Message,
		Annotations: r.annotations[pod.UID],
		Conditions:  []Condition{},
		KillError:   r.step.KillError,
		place:       r.places[pod.UID],
	}
	for _, c := range status.Conditions {
		done.Conditions = append(done.Conditions, Condition{string(c.Type), string(c.Status), c.Reason, c.Message, c.ObservedGeneration})
	}
	r.result.Evictions = append(r.result.Evictions, done)
	if r.step.KillError != "" {
		return errors.New(r.step.KillError)
	}
	r.gone[pod.UID] = true
	return nil
}

// Event, Eventf and AnnotatedEventf: the recorder of events.
func (r *run) Event(object runtime.Object, kind, reason, message string) {
	r.AnnotatedEventf(object, nil, kind, reason, "%s", message)
}

func (r *run) Eventf(object runtime.Object, kind, reason, format string, args ...any) {
	r.AnnotatedEventf(object, nil, kind, reason, format, args...)
}

func (r *run) AnnotatedEventf(object runtime.Object, annotations map[string]string, kind, reason, format string, args ...any) {
	event := Event{Type: kind, Reason: reason, Message: fmt.Sprintf(format, args...)}
	switch about := object.(type) {
	case *v1.Pod:
		event.Object = fmt.Sprintf("Pod/%s/%s", about.Namespace, about.Name)
		event.place = r.places[about.UID]
		r.annotations[about.UID] = annotations
	case *v1.ObjectReference:
		event.Object = fmt.Sprintf("%s/%s", about.Kind, about.Name)
		event.place = -1
	default:
		panic(fmt.Sprintf("event about %T", object))
	}
	r.result.Events = append(r.result.Events, event)
}
