package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// Scenario is the input as the scenario files have it.
type Scenario struct {
	Name                 string          `json:"name"`
	Description          string          `json:"description,omitempty"`
	KubeletConfiguration json.RawMessage `json:"kubeletConfiguration"`
	Filesystems          struct {
		DedicatedImageFs bool `json:"dedicatedImageFs"`
		SplitImageFs     bool `json:"splitImageFs"`
	} `json:"filesystems"`
	Pods  []*v1.Pod `json:"pods"`
	Steps []Step    `json:"steps"`
}

// Step is one pass of the manager.
type Step struct {
	At                       time.Time      `json:"at"`
	Summary                  *stats.Summary `json:"summary"`
	ActivePods               *[]string      `json:"activePods"`
	SummaryAfterReclaim      *stats.Summary `json:"summaryAfterReclaim"`
	SummaryError             string         `json:"summaryError"`
	SummaryAfterReclaimError string         `json:"summaryAfterReclaimError"`
	DiskInfoError            string         `json:"diskInfoError"`
	ContainerFsInfoError     string         `json:"containerFsInfoError"`
	ImageGcError             string         `json:"imageGcError"`
	ContainerGcError         string         `json:"containerGcError"`
	KillError                string         `json:"killError"`
	Admit                    []string       `json:"admit"`
}

// Outcome is what the manager did with a scenario, once.
type Outcome struct {
	Name             string       `json:"name"`
	ConfigError      *string      `json:"configError"`
	ConfigErrorStage string       `json:"configErrorStage,omitempty"`
	Steps            []StepResult `json:"steps"`
}

// StepResult is what happened in one pass.
type StepResult struct {
	At             string     `json:"at"`
	NodeConditions []string   `json:"nodeConditions"`
	Reclaim        []string   `json:"reclaim"`
	Evictions      []Eviction `json:"evictions"`
	Events         []Event    `json:"events"`
	Admit          []Admitted `json:"admit,omitempty"`
}

// Eviction is one call to the function that kills a pod.
type Eviction struct {
	UID                string            `json:"uid"`
	Name               string            `json:"name"`
	Namespace          string            `json:"namespace"`
	GracePeriodSeconds int64             `json:"gracePeriodSeconds"`
	Phase              string            `json:"phase"`
	Reason             string            `json:"reason"`
	Message            string            `json:"message"`
	Annotations        map[string]string `json:"annotations"`
	Conditions         []Condition       `json:"conditions"`
	KillError          string            `json:"killError,omitempty"`

	place int
}

// Condition is a pod condition after the eviction's change of the status.
type Condition struct {
	Type               string `json:"type"`
	Status             string `json:"status"`
	Reason             string `json:"reason"`
	Message            string `json:"message"`
	ObservedGeneration int64  `json:"observedGeneration,omitempty"`
}

// Event is an event as recorded.
type Event struct {
	Object  string `json:"object"`
	Type    string `json:"type"`
	Reason  string `json:"reason"`
	Message string `json:"message"`

	place int
}

// Admitted is the answer to one question for admission.
type Admitted struct {
	UID     string `json:"uid"`
	Admit   bool   `json:"admit"`
	Reason  string `json:"reason"`
	Message string `json:"message"`
}

// Validate finds scenarios that the format does not allow.
func (s *Scenario) Validate() error {
	known := map[string]bool{}
	for _, pod := range s.Pods {
		if known[string(pod.UID)] {
			return fmt.Errorf("uid %q twice", pod.UID)
		}
		known[string(pod.UID)] = true
	}
	for i, step := range s.Steps {
		if step.Summary == nil && step.SummaryError == "" {
			return fmt.Errorf("step %d has no summary", i)
		}
		asked := slices.Clone(step.Admit)
		if step.ActivePods != nil {
			asked = append(asked, *step.ActivePods...)
		}
		for _, uid := range asked {
			if !known[uid] {
				return fmt.Errorf("step %d names uid %q, which no pod has", i, uid)
			}
		}
	}
	return nil
}
