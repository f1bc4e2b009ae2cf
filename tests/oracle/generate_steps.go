package main

import (
	"math"
	"slices"
	"strings"
	"time"
)

var start = time.Date(2026, 1, 5, 8, 0, 0, 0, time.UTC)

// figureGroups are the parts of a summary that share a time.
var figureGroups = []string{"memory", "pods", "fs", "imageFs", "containerFs", "rlimit"}

func (w *world) makeSteps() {
	w.steps = []object{}
	n := 1 + w.weighted(w.mix.Steps...)
	var ats []time.Time
	times := map[string]time.Time{}
	at := start
	if w.chance(0.1) {
		at = at.Add(time.Duration(w.IntN64(1e9)))
	}
	evicts := false
	for i := range n {
		if i > 0 {
			at = w.nextTime(ats, at)
		}
		ats = append(ats, at)
		step := object{"at": w.moment(at)}
		heat := 0.62
		if i == 0 && w.chance(0.3) {
			heat = 0.9
		}
		if w.chance(0.15) {
			heat = 0.05
		}
		if w.chance(0.1) {
			heat = 1
		}
		for _, group := range figureGroups {
			switch w.weighted(7.5, 1, 0.5, 0.4, 0.3) {
			case 0:
				times[group] = at
			case 1: // the same once more
			case 2:
				times[group] = at.Add(-time.Duration(one[int64](w.maker, 1, int64(time.Second), int64(15*time.Second), int64(time.Minute))))
			case 3:
				times[group] = time.Time{}
			case 4:
				times[group] = at.Add(time.Duration(one[int64](w.maker, 1, int64(5*time.Second))))
			}
		}
		if !w.chance(w.mix.Errors) {
			step["summary"] = w.summary(times, heat)
			if w.chance(0.01) {
				step["summaryError"] = "no stats"
			}
		} else {
			step["summaryError"] = one(w.maker, "no stats", "timeout", "größer \"x\"")
			if w.chance(0.3) {
				step["summary"] = w.summary(times, heat)
			}
		}
		if w.diskish && w.chance(0.5) {
			after := map[string]time.Time{}
			for _, group := range figureGroups {
				t := times[group]
				after[group] = t
				if w.chance(0.6) && !t.IsZero() {
					after[group] = t.Add(time.Second)
				}
			}
			cool := one(w.maker, 0, 0, 0, 0.3, 0.6, 1)
			step["summaryAfterReclaim"] = w.summary(after, cool)
		}
		for _, failure := range [][2]string{{"summaryAfterReclaimError", "gone"}, {"imageGcError", "images busy"}, {"containerGcError", "containers busy"}, {"killError", one(w.maker, "timeout", "no such pod \"x\"", "é")}} {
			if w.chance(w.mix.Errors * 1.5) {
				step[failure[0]] = failure[1]
			}
		}
		if i <= 1 && w.chance(w.mix.Errors) {
			step["diskInfoError"] = "no disk"
		}
		if i <= 1 && w.chance(w.mix.Errors) {
			step["containerFsInfoError"] = "no label"
		}
		if len(w.pods) > 0 {
			if !evicts && w.chance(0.12) || w.chance(0.015) {
				step["activePods"] = w.someUIDs()
			}
			if w.chance(0.12) {
				step["admit"] = w.someUIDs()
			}
		} else if w.chance(0.1) {
			step["activePods"] = []string{}
		}
		evicts = evicts || heat > 0.1
		w.steps = append(w.steps, step)
	}
}

func (w *world) someUIDs() []string {
	uids := []string{}
	for _, i := range w.Perm(len(w.usage)) {
		if w.chance(0.8) {
			uids = append(uids, w.usage[i].uid)
		}
	}
	if w.chance(0.3) {
		slices.Sort(uids)
	}
	return uids
}

func (w *world) nextTime(ats []time.Time, at time.Time) time.Time {
	if w.chance(w.mix.Times) {
		switch w.weighted(8, 1, 1, 1, 0.4) {
		case 0: // a span after an earlier step, or almost
			t := one(w.maker, ats...).Add(time.Duration(one(w.maker, w.spans...)))
			t = t.Add(time.Duration(one[int64](w.maker, 0, 0, 0, -1, 1, int64(-time.Second), int64(time.Second))))
			if !t.After(at) && w.chance(0.9) || t.Year() > 2100 {
				break
			}
			return t
		case 1:
			return at
		case 2:
			return at.Add(-time.Duration(one[int64](w.maker, 1, int64(time.Second), int64(10*time.Second), int64(time.Minute), int64(time.Hour))))
		case 3:
			return at.Add(time.Duration(1 + w.IntN64(int64(2*time.Minute))))
		case 4:
			return one(w.maker, ats...)
		}
	}
	return at.Add(time.Duration(one[int64](w.maker, 1, 10, 10, 10, 10, 20, 30, 60, 300)) * time.Second)
}

// huge is a value beyond int64.
func (w *world) huge() uint64 {
	return one[uint64](w.maker, 1<<63, 1<<63-1, 1<<63+1, math.MaxUint64, math.MaxUint64-1000, 1<<63+1024, 1<<63-1024, 1<<62)
}

// put writes a value, unless it is to be missing.
func (w *world) put(to object, key string, v int64) {
	switch {
	case w.chance(w.mix.Missing):
		if w.chance(0.1) {
			to[key] = nil
		}
	case w.chance(w.mix.Huge):
		to[key] = w.huge()
	default:
		to[key] = max(v, 0)
	}
}

func (w *world) putTime(to object, t time.Time) {
	switch {
	case !t.IsZero():
		to["time"] = w.moment(t)
	case w.chance(0.3):
		to["time"] = nil
	case w.chance(0.2):
		to["time"] = "0001-01-01T00:00:00Z"
	}
}

// value returns what is available of a signal.
func (w *world) value(signal string, heat float64) int64 {
	capacity, bounds := w.capacity[signal], w.bounds[signal]
	var fine []int64
	for _, bound := range bounds {
		if bound >= 0 && bound <= 4*capacity {
			fine = append(fine, bound)
		}
	}
	if len(fine) == 0 {
		return w.IntN64(capacity + 1)
	}
	bound := one(w.maker, fine...)
	if w.chance(heat) {
		switch w.weighted(4, 2, 1, 1.5, 0.7, 3) {
		case 0:
			return w.IntN64(bound + 1)
		case 1:
			return bound - 1
		case 2:
			return 0
		case 3:
			return bound
		case 4:
			return bound + 1
		}
		return bound * int64(1+w.IntN(99)) / 100
	}
	most := slices.Max(fine)
	switch w.weighted(6, 1, 1) {
	case 0:
		return most + w.IntN64(max(capacity-most, 1)+1)
	case 1:
		return most
	}
	return most + 1
}

func (w *world) filesystem(name string, t time.Time, heat float64) object {
	fs := object{}
	bytes, inodes := w.value(name+".available", heat), w.value(name+".inodesFree", heat)
	w.put(fs, "availableBytes", bytes)
	w.put(fs, "capacityBytes", w.capacity[name+".available"])
	w.put(fs, "inodesFree", inodes)
	w.put(fs, "inodes", w.capacity[name+".inodesFree"])
	if w.chance(0.5) {
		fs["usedBytes"] = max(0, w.capacity[name+".available"]-bytes)
	}
	w.putTime(fs, t)
	return fs
}

func (w *world) summary(times map[string]time.Time, heat float64) object {
	node := object{"nodeName": "node"}
	memory := func(signal string, t time.Time) object {
		m := object{}
		free := w.value(signal, heat)
		w.put(m, "availableBytes", free)
		w.put(m, "workingSetBytes", w.capacity[signal]-free)
		w.putTime(m, t)
		return m
	}
	if !w.chance(w.mix.Missing) {
		node["memory"] = memory("memory.available", times["memory"])
	}
	has := func(names ...string) bool {
		for _, name := range names {
			for signal, bounds := range w.bounds {
				if len(bounds) > 0 && strings.HasPrefix(signal, name) {
					return true
				}
			}
		}
		return false
	}
	if has("allocatable") && w.chance(0.75) || w.chance(0.05) {
		system := []object{}
		if w.chance(0.4) {
			system = append(system, object{"name": "kubelet", "memory": object{"availableBytes": 1, "workingSetBytes": 5}})
		}
		pods := object{"name": "pods"}
		if !w.chance(w.mix.Missing) {
			pods["memory"] = memory("allocatableMemory.available", times["pods"])
		}
		system = append(system, pods)
		if w.chance(0.05) {
			system = append(system, object{"name": "pods", "memory": object{"availableBytes": 0, "workingSetBytes": 100}})
		}
		node["systemContainers"] = system
	}
	if has("nodefs") && !w.chance(w.mix.Missing) || w.chance(0.1) {
		node["fs"] = w.filesystem("nodefs", times["fs"], heat)
	}
	if has("imagefs", "containerfs") && !w.chance(w.mix.Missing) || w.chance(0.1) {
		runtime := object{}
		if !w.chance(w.mix.Missing) {
			runtime["imageFs"] = w.filesystem("imagefs", times["imageFs"], heat)
		}
		if has("containerfs") && w.chance(0.8) || w.chance(0.1) {
			runtime["containerFs"] = w.filesystem("containerfs", times["containerFs"], heat)
			if w.chance(0.3) && runtime["imageFs"] != nil {
				runtime["containerFs"] = runtime["imageFs"]
			}
		}
		node["runtime"] = runtime
	}
	if has("pid") && !w.chance(w.mix.Missing) || w.chance(0.05) {
		rlimit := object{}
		free := w.value("pid.available", heat)
		used := w.capacity["pid.available"] - free
		if w.chance(0.03) {
			used = w.capacity["pid.available"] + w.IntN64(500)
		}
		if !w.chance(w.mix.Missing) {
			rlimit["maxpid"] = w.capacity["pid.available"]
		}
		if !w.chance(w.mix.Missing) {
			rlimit["curproc"] = used
		}
		if w.chance(w.mix.Huge) {
			rlimit[one(w.maker, "maxpid", "curproc")] = one[int64](w.maker, math.MaxInt64, math.MinInt64, -1, -5)
		}
		w.putTime(rlimit, times["rlimit"])
		node["rlimit"] = rlimit
	}
	pods := []object{}
	for _, usage := range w.usage {
		if usage.silent || w.chance(0.008) {
			continue
		}
		pods = append(pods, w.podStats(usage))
		if w.chance(0.008) {
			pods = append(pods, w.podStats(usage))
		}
	}
	if w.chance(0.03) {
		pods = append(pods, w.podStats(&podUsage{uid: "stranger", name: "stranger", namespace: "default", memory: w.size()}))
	}
	if w.chance(0.3) {
		w.Shuffle(len(pods), func(i, j int) { pods[i], pods[j] = pods[j], pods[i] })
	}
	summary := object{"node": node, "pods": pods}
	if len(pods) == 0 && w.chance(0.3) {
		summary["pods"] = nil
	}
	return summary
}

// jitter changes a value from one step to another, mostly not.
func (w *world) jitter(v int64) int64 {
	if w.chance(0.85) {
		return v
	}
	return w.near(v)
}

func (w *world) podStats(usage *podUsage) object {
	stats := object{"podRef": object{"name": usage.name, "namespace": usage.namespace, "uid": usage.uid}}
	missing := func() bool { return w.chance(w.mix.Missing) }
	containers := []object{}
	for _, c := range usage.containers {
		if missing() {
			continue
		}
		container := object{"name": c.name}
		if w.byMemory || w.chance(0.3) {
			memory := object{}
			w.put(memory, "workingSetBytes", w.jitter(c.memory))
			if !missing() {
				container["memory"] = memory
			}
		}
		if w.diskish || w.local || w.chance(0.1) {
			rootfs, logs := object{}, object{}
			w.put(rootfs, "usedBytes", w.jitter(c.rootfs))
			w.put(rootfs, "inodesUsed", w.jitter(c.rootInodes))
			w.put(logs, "usedBytes", w.jitter(c.logs))
			w.put(logs, "inodesUsed", w.jitter(c.logInodes))
			if !missing() {
				container["rootfs"] = rootfs
			}
			if !missing() {
				container["logs"] = logs
			}
		}
		containers = append(containers, container)
		if w.chance(0.01) {
			containers = append(containers, container)
		}
	}
	if len(containers) > 0 || w.chance(0.7) {
		stats["containers"] = containers
	}
	if !missing() && (w.byMemory || w.chance(0.3)) {
		memory := object{}
		w.put(memory, "workingSetBytes", w.jitter(usage.memory))
		stats["memory"] = memory
	}
	if len(usage.volumes) > 0 {
		volumes := []object{}
		for _, v := range usage.volumes {
			volume := object{"name": v.name}
			w.put(volume, "usedBytes", w.jitter(v.used))
			if volume["usedBytes"] == nil && w.isolated && !w.mix.Crash { // the kubelet's process would end
				volume["usedBytes"] = v.used
			}
			w.put(volume, "inodesUsed", w.jitter(v.inodes))
			volumes = append(volumes, volume)
		}
		stats["volume"] = volumes
	}
	if !missing() && (w.local || w.chance(0.2)) {
		ephemeral := object{}
		w.put(ephemeral, "usedBytes", w.jitter(usage.ephemeral))
		stats["ephemeral-storage"] = ephemeral
	}
	if !missing() && (len(w.bounds["pid.available"]) > 0 || w.chance(0.1)) {
		processes := object{}
		w.put(processes, "process_count", w.jitter(usage.processes))
		stats["process_stats"] = processes
	}
	return stats
}
