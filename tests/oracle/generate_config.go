package main

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
)

// theValue makes a threshold's text for a signal.
func (w *world) theValue(signal string, share float64) string {
	capacity := w.capacity[signal]
	if w.chance(w.mix.OddText * 0.18) {
		if w.chance(0.5) {
			return one(w.maker, oddPercents...)
		}
		return one(w.maker, oddQuantities...)
	}
	if w.chance(0.35) {
		percent := one(w.maker, "5", "10", "15", "7", "20", "1", "50", "33", "12.5", "0.1", "99", "30", "3")
		if w.chance(0.02) {
			percent = one(w.maker, "0", "100")
		}
		return percent + "%"
	}
	return w.quantity(w.round(int64(float64(capacity)*share), signal), w.mix.OddText)
}

// round makes a value that people would choose.
func (w *world) round(v int64, signal string) int64 {
	v = max(v, 1)
	units := []int64{gi, 100 * mi, 1_000_000_000, mi, 1_000_000, 1000, ki, 1}
	if strings.Contains(signal, "inodes") || strings.Contains(signal, "pid") {
		units = []int64{10_000, 1000, 1024, 100, 1}
	}
	if w.chance(0.1) {
		return v
	}
	for _, unit := range units {
		if v >= unit && w.chance(0.7) {
			return v / unit * unit
		}
	}
	return v
}

func (w *world) makeConfig() {
	config := object{}
	w.config = config
	hard, soft, graces, reclaims := object{}, object{}, object{}, object{}
	defaults := w.chance(0.06)
	for n := 1 + w.weighted(4, 4, 2, 1); n > 0; n-- {
		theme := w.weighted(w.mix.Themes[:]...)
		for _, signal := range themes[theme] {
			if len(themes[theme]) > 1 && w.chance(0.4) {
				continue
			}
			switch w.weighted(5, 2.5, 2.5) {
			case 0:
				hard[signal] = w.theValue(signal, 0.02+0.2*w.Float64())
			case 1:
				w.makeSoft(soft, graces, signal, 0.05+0.3*w.Float64())
			case 2:
				share := 0.02 + 0.15*w.Float64()
				hard[signal] = w.theValue(signal, share)
				w.makeSoft(soft, graces, signal, share*one(w.maker, 1.0, 2, 1.5, 0.5, 1.01))
				if w.chance(0.08) {
					soft[signal] = hard[signal]
				}
			}
			if w.chance(0.35) {
				reclaims[signal] = w.theReclaim(signal)
			}
		}
	}
	if w.chance(0.02) { // everything at once
		for _, signal := range signals {
			hard[signal] = w.theValue(signal, 0.1)
			if w.chance(0.5) {
				w.makeSoft(soft, graces, signal, 0.2)
			}
		}
	}
	for w.chance(0.06) {
		graces[one(w.maker, signals...)] = w.theGrace()
	}
	for w.chance(0.06) {
		signal := one(w.maker, signals...)
		reclaims[signal] = w.theReclaim(signal)
	}
	if !defaults || len(hard) > 0 && w.chance(0.2) {
		config["evictionHard"] = hard
	}
	if defaults && w.chance(0.2) {
		config["evictionHard"] = nil
	}
	if len(hard) == 0 && w.chance(0.3) {
		delete(config, "evictionHard")
	}
	if len(soft) > 0 || w.chance(0.05) {
		config["evictionSoft"] = soft
	}
	if len(graces) > 0 || w.chance(0.05) {
		config["evictionSoftGracePeriod"] = graces
	}
	if len(reclaims) > 0 || w.chance(0.05) {
		config["evictionMinimumReclaim"] = reclaims
	}
	if w.chance(0.12) {
		config["mergeDefaultEvictionSettings"] = w.chance(0.75)
	}
	if w.chance(0.5) {
		config["evictionMaxPodGracePeriod"] = one(w.maker, 0, 1, 5, 10, 30, 60, 120, 600, -1, -30, 2147483647, -2147483648)
	}
	transition := int64(5 * time.Minute)
	if w.chance(0.55) {
		transition = one[int64](w.maker, 0, 1, 10, 20, 30, 60, 300, 3600, 5, 40) * int64(time.Second)
		if w.chance(0.12) {
			transition = one(w.maker, int64(-1), -int64(time.Second), -int64(time.Hour), 1, int64(1500*time.Millisecond), 9223372036854775807)
		}
		config["evictionPressureTransitionPeriod"] = w.duration(transition)
		if transition == 0 {
			transition = int64(5 * time.Minute)
		}
	}
	w.spans = append(w.spans, transition)
	w.isolated = true
	if w.local {
		if w.chance(0.2) {
			config["localStorageCapacityIsolation"] = w.chance(0.7)
		}
	} else if w.chance(0.15) {
		config["localStorageCapacityIsolation"] = w.chance(0.3)
	}
	if v, given := config["localStorageCapacityIsolation"]; given {
		w.isolated = v.(bool)
	}
	w.makeEnforcement()
	w.makeGates()
	if w.chance(0.06 + w.mix.BadConfig*0.2) {
		w.makeOtherFields()
	}
	if w.chance(w.mix.BadConfig) {
		for again := true; again; again = w.chance(0.3) {
			w.spoil()
		}
	}
	w.makeBounds()
}

func (w *world) makeSoft(soft, graces object, signal string, share float64) {
	soft[signal] = w.theValue(signal, share)
	graces[signal] = w.theGrace()
}

func (w *world) theGrace() string {
	if w.chance(w.mix.OddText * 0.2) {
		return one(w.maker, goodGraces...)
	}
	return w.duration(one[int64](w.maker, 0, 0, 1, 5, 10, 10, 20, 30, 30, 60, 90, 120, 3600) * int64(time.Second))
}

func (w *world) theReclaim(signal string) string {
	switch {
	case w.chance(w.mix.OddText * 0.2):
		if w.chance(0.4) {
			return one(w.maker, reclaimPercents...)
		}
		if w.chance(0.5) {
			return one(w.maker, oddPercents...)
		}
		return one(w.maker, oddQuantities...)
	case w.chance(0.3):
		return one(w.maker, "1%", "5%", "10%", "50%", "100%", "200%", "3%", "0.5%")
	case w.chance(0.1):
		return one(w.maker, "0", "0Mi", "0k")
	}
	return w.quantity(w.round(int64(float64(w.capacity[signal])*0.1*w.Float64()), signal), w.mix.OddText)
}

func (w *world) makeEnforcement() {
	if !w.chance(0.15) {
		return
	}
	switch w.IntN(8) {
	case 0, 1:
		w.config["enforceNodeAllocatable"] = []string{"none"}
	case 2, 3:
		w.config["enforceNodeAllocatable"] = []string{}
	case 4:
		w.config["enforceNodeAllocatable"] = []string{"pods"}
	case 5:
		w.config["enforceNodeAllocatable"] = one(w.maker, []string{"pods", "kube-reserved"}, []string{"kube-reserved"}, []string{"kube-reserved-compressible", "pods"})
		w.config["kubeReservedCgroup"] = "/kube"
	case 6:
		w.config["enforceNodeAllocatable"] = one(w.maker, []string{"system-reserved", "pods"}, []string{"system-reserved-compressible"}, []string{"kube-reserved-compressible", "pods", "system-reserved"})
		w.config["systemReservedCgroup"] = "/system"
		w.config["kubeReservedCgroup"] = "/kube"
	case 7:
		w.config["enforceNodeAllocatable"] = one(w.maker, nil, []string{"none"}, []string{})
		w.config["cgroupsPerQOS"] = w.config["enforceNodeAllocatable"] == nil
	}
}

func (w *world) makeGates() {
	if !w.chance(w.mix.Gates) && !w.mix.Crash {
		return
	}
	gates := object{}
	switch w.IntN(10) {
	case 0, 1, 2:
		gates["KubeletSeparateDiskGC"] = false
	case 3:
		gates["KubeletSeparateDiskGC"] = one[any](w.maker, true, nil)
	case 4, 5, 6:
		gates["PodLevelResources"] = false
		gates["InPlacePodLevelResourcesVerticalScaling"] = false
		if w.chance(0.2) {
			gates["KubeletSeparateDiskGC"] = false
		}
	case 7:
		gates["PodLevelResources"] = true
	case 8:
		gates["AllBeta"] = false
		if w.chance(0.5) {
			gates["PodLevelResources"] = true
		}
		if w.chance(0.5) {
			gates["KubeletSeparateDiskGC"] = true
		}
	case 9:
		gates["AllAlpha"] = w.chance(0.5)
	}
	if w.mix.Crash && w.chance(0.5) {
		gates[one(w.maker, "Bogus", "PodObservedGenerationTracking", "", "PodLevelResources")] = false
		delete(gates, "InPlacePodLevelResourcesVerticalScaling")
	}
	w.config["featureGates"] = gates
}

// makeOtherFields adds valid fields and unknown ones that decide nothing.
func (w *world) makeOtherFields() {
	for again := true; again; again = w.chance(0.5) {
		switch w.IntN(12) {
		case 0:
			w.config["apiVersion"], w.config["kind"] = "kubelet.config.k8s.io/v1beta1", "KubeletConfiguration"
		case 1:
			w.config["maxPods"] = one(w.maker, 0, 110, 250)
		case 2:
			w.config["systemReserved"] = object{"memory": "1Gi", "cpu": "200m"}
		case 3:
			w.config["kubeReserved"] = object{"ephemeral-storage": "1Gi"}
		case 4:
			w.config["EvictionHard"] = object{"memory.available": "5Gi"}
		case 5:
			w.config["evictionhard"] = "x"
		case 6:
			w.config["comment"] = object{"a": []int{1}}
		case 7:
			w.config["nodeStatusUpdateFrequency"] = "10s"
		case 8:
			w.config["cgroupsPerQOS"] = true
		case 9:
			w.config["failSwapOn"] = false
		case 10:
			w.config["imageGCHighThresholdPercent"], w.config["imageGCLowThresholdPercent"] = 90, 70
		case 11:
			w.config["evictionMinimumReclaims"] = object{"memory.available": "bad"}
		}
	}
}

func (w *world) mapOf(key string) object {
	if m, is := w.config[key].(object); is && m != nil {
		return m
	}
	m := object{}
	w.config[key] = m
	return m
}

var badSignals = []string{"memory.free", "memory", "", "Memory.available", "memory.available ", "nodefs.inodes", "pid", "imagefs.inodesfree", "allocatableNodeFs.available", "memory.available<1Gi", "%d", "swap.available", "nodefs.available\n", "größe"}

// spoil puts one mistake into the configuration.
func (w *world) spoil() {
	signal := one(w.maker, signals...)
	badText := func() string {
		if w.chance(0.5) {
			return one(w.maker, badPercents...)
		}
		if w.chance(0.25) {
			return one(w.maker, "0", "0Mi", "-1Gi", "-0", "-5", "-1500m", ".", "+", "Ki", "0e9", "-9Ei", "-1.5G", "-1e3", "-100E", "-1000E")
		}
		return one(w.maker, badQuantities...)
	}
	switch w.weighted(5, 4, 4, 4, 3, 2, 2, 1.2, 4, 3) {
	case 0:
		w.mapOf("evictionHard")[signal] = badText()
	case 1:
		w.mapOf("evictionSoft")[signal] = badText()
		if w.chance(0.7) {
			w.mapOf("evictionSoftGracePeriod")[signal] = w.theGrace()
		}
	case 2:
		w.mapOf("evictionSoftGracePeriod")[signal] = one(w.maker, badGraces...)
	case 3:
		if w.chance(0.3) {
			w.mapOf("evictionMinimumReclaim")[signal] = one(w.maker, badReclaimPercents...)
		} else {
			w.mapOf("evictionMinimumReclaim")[signal] = badText()
		}
	case 4:
		w.mapOf("evictionSoft")[signal] = w.theValue(signal, 0.1)
		delete(w.mapOf("evictionSoftGracePeriod"), signal)
	case 5:
		key := one(w.maker, "evictionHard", "evictionSoft", "evictionSoftGracePeriod", "evictionMinimumReclaim")
		w.mapOf(key)[one(w.maker, badSignals...)] = one(w.maker, "1Gi", "5%", "10s", "x")
	case 6: // enforcement
		w.config["enforceNodeAllocatable"] = one(w.maker, []string{"pods", "pods"}, []string{"none", "pods"}, []string{"pods", "none"}, []string{"bogus"}, []string{""}, []string{"Pods"}, []string{"kube-reserved", "pods"},
			[]string{"system-reserved"}, []string{"system-reserved", "system-reserved-compressible"}, []string{"kube-reserved-compressible", "kube-reserved"}, []string{"none", "none"})
		if w.chance(0.3) {
			w.config["kubeReservedCgroup"], w.config["systemReservedCgroup"] = "/kube", "/system"
		}
	case 7:
		w.config["cgroupsPerQOS"] = false
	case 8: // wrong types
		key := one(w.maker, "evictionHard", "evictionSoft", "evictionSoftGracePeriod", "evictionMinimumReclaim")
		switch w.IntN(12) {
		case 0:
			w.mapOf(key)[signal] = one[any](w.maker, 5, 1.5, true, []int{}, object{}, nil)
		case 1:
			w.config[key] = one[any](w.maker, "memory.available<1Gi", []string{"a"}, 5, true)
		case 2, 3:
			w.config["evictionPressureTransitionPeriod"] = one[any](w.maker, 300, "5", "", "1d", " 5m", nil, true, object{}, "5m ", "-", "x", "9223372036854775808ns", 0)
		case 4, 5:
			w.config["evictionMaxPodGracePeriod"] = one[any](w.maker, "30", 1.5, 2147483648, -2147483649, json.Number("1e2"), json.Number("5.0"), true, nil, json.Number("-0"), object{}, json.Number("1E0"))
		case 6:
			w.config["mergeDefaultEvictionSettings"] = one[any](w.maker, "true", 1, nil, object{}, 0)
		case 7:
			w.config["enforceNodeAllocatable"] = one[any](w.maker, "pods", []any{nil}, []any{1}, object{}, true, []any{"pods", nil}, []any{[]string{"pods"}})
		case 8:
			w.config["localStorageCapacityIsolation"] = one[any](w.maker, "false", 0, nil, []int{})
		case 9:
			w.config["featureGates"] = one[any](w.maker, object{"KubeletSeparateDiskGC": "false"}, object{"KubeletSeparateDiskGC": 0}, []string{"KubeletSeparateDiskGC=false"}, "KubeletSeparateDiskGC=false", nil)
		case 10:
			w.config["cgroupsPerQOS"] = one[any](w.maker, "true", 1, nil)
		case 11:
			w.config[one(w.maker, "kubeReservedCgroup", "systemReservedCgroup")] = one[any](w.maker, 5, nil, true)
		}
	case 9: // other rules of whole validation, and of decoding
		switch w.IntN(16) {
		case 0:
			w.config["nodeLeaseDurationSeconds"] = one(w.maker, -1, 0, 40)
		case 1:
			w.config["maxPods"] = -1
		case 2:
			w.config["imageGCHighThresholdPercent"] = one(w.maker, 101, 80, 0, 79, 85)
		case 3:
			w.config["imageGCLowThresholdPercent"] = one(w.maker, 85, 90, -1, 84)
		case 4:
			w.config["port"] = one(w.maker, 70000, -1, 0)
		case 5:
			w.config["readOnlyPort"] = one(w.maker, 65536, 0, 10255)
		case 6:
			w.config["oomScoreAdj"] = one(w.maker, -1001, 1001, 1000)
		case 7:
			w.config["podsPerCore"] = one(w.maker, -1, 10)
		case 8:
			w.config["systemCgroups"] = "/system"
		case 9:
			w.config["hairpinMode"] = one(w.maker, "bogus", "none", "hairpin-veth")
		case 10:
			w.config["topologyManagerPolicy"] = one(w.maker, "bogus", "restricted")
		case 11:
			w.config["containerLogMaxFiles"] = one(w.maker, 1, 0, 2)
		case 12:
			w.config["podLogsDir"] = one(w.maker, "relative", "/var/log/../x", "/ok", "/ok/")
		case 13:
			w.config["memoryThrottlingFactor"] = one(w.maker, 0.0, 1.1, 0.5, 1.0)
		case 14:
			w.config["kind"] = one[any](w.maker, "Kubelet", "", nil, "KubeletConfiguration", 5)
		case 15:
			w.config["apiVersion"] = one[any](w.maker, "v1", "kubelet.config.k8s.io/v1alpha1", "kubelet.config.k8s.io/v1", "", "kubelet.config.k8s.io/v1beta1", nil)
		}
	}
}

// makeBounds finds the values at which the configured thresholds change something.
func (w *world) makeBounds() {
	read := func(key string) map[string]string {
		texts := map[string]string{}
		m, _ := w.config[key].(object)
		for signal, value := range m {
			if text, is := value.(string); is {
				texts[signal] = text
			}
		}
		return texts
	}
	amount := func(signal, text string) (int64, bool) {
		if strings.HasSuffix(text, "%") {
			share, err := strconv.ParseFloat(strings.TrimRight(text, "%"), 32)
			return int64(float64(w.capacity[signal]) * float64(float32(share)/100)), err == nil && share >= 0 && share < 1e4
		}
		quantity, err := resource.ParseQuantity(text)
		if err != nil {
			return 0, false
		}
		return quantity.Value(), quantity.Sign() >= 0
	}
	hard, soft, reclaim := read("evictionHard"), read("evictionSoft"), read("evictionMinimumReclaim")
	if _, given := w.config["evictionHard"]; !given || w.config["mergeDefaultEvictionSettings"] == true {
		for signal, value := range map[string]string{"memory.available": "100Mi", "nodefs.available": "10%", "nodefs.inodesFree": "5%", "imagefs.available": "15%", "imagefs.inodesFree": "5%"} {
			if _, given := hard[signal]; !given {
				hard[signal] = value
			}
		}
	}
	if _, given := hard["allocatableMemory.available"]; !given && hard["memory.available"] != "" {
		hard["allocatableMemory.available"] = hard["memory.available"]
	}
	from := "nodefs"
	if w.dedicate && !w.split {
		from = "imagefs"
	}
	for _, kind := range []string{".available", ".inodesFree"} {
		for _, m := range []map[string]string{hard, soft, reclaim} {
			if text, given := m[from+kind]; given {
				m["containerfs"+kind] = text
			}
		}
	}
	for _, signal := range signals {
		more, wants := amount(signal, reclaim[signal])
		for _, m := range []map[string]string{hard, soft} {
			if text, given := m[signal]; given {
				if bound, fine := amount(signal, text); fine {
					w.bounds[signal] = append(w.bounds[signal], bound)
					if wants {
						w.bounds[signal] = append(w.bounds[signal], bound+more)
					}
				}
			}
		}
	}
	for signal, text := range read("evictionSoftGracePeriod") {
		if grace, err := time.ParseDuration(text); err == nil && grace > 0 && grace < 1000*time.Hour && soft[signal] != "" {
			w.spans = append(w.spans, int64(grace))
		}
	}
	slices.Sort(w.spans)
	w.byMemory = len(w.bounds["memory.available"])+len(w.bounds["allocatableMemory.available"]) > 0
	for _, theme := range themes[2:5] {
		for _, signal := range theme {
			w.diskish = w.diskish || len(w.bounds[signal]) > 0
		}
	}
}
