package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"

	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	logsapi "k8s.io/component-base/logs/api/v1"
	_ "k8s.io/kubernetes/pkg/features"
	kubeletconfig "k8s.io/kubernetes/pkg/kubelet/apis/config"
	"k8s.io/kubernetes/pkg/kubelet/apis/config/scheme"
	"k8s.io/kubernetes/pkg/kubelet/apis/config/validation"
	"k8s.io/kubernetes/pkg/kubelet/eviction"
	"k8s.io/kubernetes/pkg/kubelet/kubeletconfig/util/codec"
)

// Stages at which a configuration may fail.
const (
	stageDecode       = "decode"
	stageFeatureGates = "featureGates"
	stageValidate     = "validate"
	stageThresholds   = "thresholds"
)

// pristine is the state of the feature gates of a kubelet that was given none.
var pristine = func() func() {
	if err := logsapi.AddFeatureGates(utilfeature.DefaultMutableFeatureGate); err != nil {
		panic(err)
	}
	base := utilfeature.DefaultMutableFeatureGate
	return func() {
		gates := base.DeepCopy()
		utilfeature.DefaultMutableFeatureGate = gates
		utilfeature.DefaultFeatureGate = gates
	}
}()

var codecs = func() *serializer.CodecFactory {
	_, factory, err := scheme.NewSchemeAndCodecs(serializer.EnableStrict)
	if err != nil {
		panic(err)
	}
	return factory
}()

type configError struct {
	stage string
	text  string
}

// loadConfig goes the way of a configuration file through the kubelet's start, up to
// and with whole validation. It leaves the feature gates as the configuration says.
func loadConfig(ctx context.Context, raw json.RawMessage) (*kubeletconfig.KubeletConfiguration, *configError, error) {
	pristine()
	data, err := withKind(raw)
	if err != nil {
		return nil, nil, err
	}
	config, err := codec.DecodeKubeletConfiguration(ctx, codecs, data)
	if err != nil {
		return nil, &configError{stageDecode, err.Error()}, nil
	}
	if config.EvictionHard == nil {
		config.EvictionHard = maps.Clone(eviction.DefaultEvictionHard)
	} else if config.MergeDefaultEvictionSettings {
		for signal, value := range eviction.DefaultEvictionHard {
			if _, given := config.EvictionHard[signal]; !given {
				config.EvictionHard[signal] = value
			}
		}
	}
	if err := utilfeature.DefaultMutableFeatureGate.SetFromMap(config.FeatureGates); err != nil {
		return nil, &configError{stageFeatureGates, err.Error()}, nil
	}
	// The machine's cgroup version is no part of a scenario.
	machineless := config.DeepCopy()
	machineless.FailCgroupV1 = false
	machineless.SingleProcessOOMKill = nil
	if err := validation.ValidateKubeletConfiguration(machineless, utilfeature.DefaultFeatureGate); err != nil {
		return nil, &configError{stageValidate, err.Error()}, nil
	}
	return config, nil, nil
}

// withKind adds apiVersion and kind, keeping the order and the text of what is given.
func withKind(raw json.RawMessage) ([]byte, error) {
	given := map[string]json.RawMessage{}
	if len(bytes.TrimSpace(raw)) > 0 {
		if err := json.Unmarshal(raw, &given); err != nil {
			return nil, fmt.Errorf("kubeletConfiguration: %w", err)
		}
	}
	head := ""
	for key, value := range map[string]string{"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration"} {
		if _, is := given[key]; !is {
			head += fmt.Sprintf("%q:%q,", key, value)
		}
	}
	if len(given) == 0 {
		return []byte("{" + head[:len(head)-1] + "}"), nil
	}
	at := bytes.IndexByte(raw, '{') + 1
	return slices.Concat(raw[:at], []byte(head), raw[at:]), nil
}

// thresholdsOf parses the eviction maps, each in an order of its own.
func thresholdsOf(config *kubeletconfig.KubeletConfiguration, random *rand.Rand) (eviction.Config, error) {
	thresholds, err := eviction.ParseThresholdConfig(config.EnforceNodeAllocatable,
		reordered(config.EvictionHard, random), reordered(config.EvictionSoft, random),
		reordered(config.EvictionSoftGracePeriod, random), reordered(config.EvictionMinimumReclaim, random))
	if err != nil {
		return eviction.Config{}, err
	}
	return eviction.Config{
		PressureTransitionPeriod: config.EvictionPressureTransitionPeriod.Duration,
		MaxPodGracePeriodSeconds: int64(config.EvictionMaxPodGracePeriod),
		Thresholds:               thresholds,
	}, nil
}

func reordered(m map[string]string, random *rand.Rand) map[string]string {
	if m == nil {
		return nil
	}
	keys := slices.Sorted(maps.Keys(m))
	random.Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
	other := make(map[string]string, len(m))
	for _, key := range keys {
		other[key] = m[key]
	}
	return other
}
