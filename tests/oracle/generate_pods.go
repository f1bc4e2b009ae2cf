package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
)

// podUsage is what the statistics of a pod are made around.
type podUsage struct {
	uid, name, namespace string
	silent               bool // never in a summary
	memory               int64
	containers           []containerUsage
	volumes              []volumeUsage
	processes            int64
	ephemeral            int64
}

type containerUsage struct {
	name                  string
	memory, rootfs, logs  int64
	rootInodes, logInodes int64
}

type volumeUsage struct {
	name         string
	used, inodes int64
}

// Values that requests, limits and usages share, so that they are often equal.
var sizes = []int64{0, 1, 50 * mi, 64 * mi, 100 * mi, 100 * mi, 128 * mi, 200 * mi, 256 * mi, 256 * mi, 300 * mi, 500 * mi, 512 * mi, gi, gi, 2 * gi, 1_000_000, 100_000_000, 500_000_000, 1_500_000_000, 1000, 1024, 4097}

func (w *world) size() int64 { return one(w.maker, sizes...) }

// near makes a value at, or beside, another.
func (w *world) near(v int64) int64 {
	switch w.weighted(4, 2, 2, 2, 1.5, 1.5) {
	case 0:
		return v + w.IntN64(v+mi)
	case 1:
		return v
	case 2:
		return v + 1
	case 3:
		return max(0, v-1)
	case 4:
		return v / 2
	}
	return w.size()
}

// IntN64 is a random number in [0, n).
func (m maker) IntN64(n int64) int64 {
	if n <= 0 {
		return 0
	}
	return m.Int64N(n)
}

// text is a quantity of a pod.
func (w *world) text(v int64) any {
	if w.chance(w.mix.OddText * 0.08) {
		return one(w.maker, oddQuantities...)
	}
	if w.chance(0.02) {
		return v
	}
	if w.chance(w.mix.OddText * 0.01) {
		return one(w.maker, json.Number("1.5"), json.Number("1e3"), json.Number("0.5"), json.Number("1E6"))
	}
	return w.quantity(v, w.mix.OddText)
}

func (w *world) makePods() {
	w.pods, w.usage = []object{}, nil
	n := w.weighted(w.mix.Pods...)
	prefix := one(w.maker, "pod-", "web-", "p", "z-")
	uids := w.Perm(26)
	long := w.chance(0.15)
	for i := range n {
		uid := string(rune('a' + uids[i]))
		if long {
			uid = fmt.Sprintf("%08x-0000-4000-8000-%012x", w.Uint32(), i)
		}
		if i > 0 && w.chance(w.mix.Ties) {
			w.twin(uid, fmt.Sprintf("%s%c", prefix, 'a'+i))
			continue
		}
		w.makePod(uid, fmt.Sprintf("%s%c", prefix, 'a'+i))
	}
}

// twin adds a pod like an earlier one.
func (w *world) twin(uid, name string) {
	at := w.IntN(len(w.pods))
	pod := maps.Clone(w.pods[at])
	metadata := maps.Clone(pod["metadata"].(object))
	metadata["uid"], metadata["name"] = uid, name
	pod["metadata"] = metadata
	usage := *w.usage[at]
	usage.uid, usage.name = uid, name
	w.pods, w.usage = append(w.pods, pod), append(w.usage, &usage)
}

func (w *world) makePod(uid, name string) {
	rich := w.chance(w.mix.Rich)
	namespace := one(w.maker, "default", "default", "default", "kube-system", "team-a")
	if rich && w.chance(0.04) && len(w.usage) > 0 { // a name that is taken
		name, namespace = w.usage[0].name, w.usage[0].namespace
	}
	usage := &podUsage{uid: uid, name: name, namespace: namespace, silent: w.chance(0.012 + w.mix.Missing/2)}
	metadata := object{"name": name, "namespace": namespace, "uid": uid}
	spec := object{}
	usage.processes = one[int64](w.maker, 0, 1, 1, 2, 5, 10, 10, 100, 1000, 32000)
	limited := w.local && w.chance(0.7)

	names := []string{"main", "side", "app", "log"}
	if rich && w.chance(0.08) {
		names = []string{one(w.maker, "m", "main", "é", "a,b", "c\"q", "100%", "%d"), "main", "main", "x"}
	}
	containers := []object{}
	count := w.weighted(0.25, 6, 3, 1, 0.5)
	for i := range count {
		container, used := w.makeContainer(names[i], limited, rich)
		containers = append(containers, container)
		usage.containers = append(usage.containers, used)
	}
	if len(containers) > 0 || w.chance(0.5) {
		spec["containers"] = containers
	}
	if rich && w.chance(0.35) {
		inits := []object{}
		for i := range 1 + w.weighted(5, 3, 1) {
			init, used := w.makeContainer(fmt.Sprintf("init%d", i), limited, rich)
			switch w.weighted(4, 5, 0.3, 0.2) {
			case 1:
				init["restartPolicy"] = "Always"
			case 2:
				init["restartPolicy"] = "OnFailure"
			case 3:
				init["restartPolicy"] = ""
			}
			inits = append(inits, init)
			if w.chance(0.5) {
				usage.containers = append(usage.containers, used)
			}
		}
		if w.chance(0.05) {
			inits[0]["name"] = "main"
		}
		spec["initContainers"] = inits
	}
	if rich && w.chance(0.1) {
		spec["ephemeralContainers"] = []object{{"name": one(w.maker, "debug", "debug", "main")}}
		usage.containers = append(usage.containers, containerUsage{name: "debug", memory: w.size(), rootfs: w.size(), logs: w.size()})
	}
	if rich && w.chance(0.08) {
		usage.containers = append(usage.containers, containerUsage{name: one(w.maker, "gone", "main", "POD"), memory: w.size(), rootfs: w.size(), logs: w.size(), rootInodes: 7, logInodes: 5})
	}
	if w.chance(0.15) {
		w.Shuffle(len(usage.containers), func(i, j int) {
			usage.containers[i], usage.containers[j] = usage.containers[j], usage.containers[i]
		})
	}

	if rich && w.chance(0.15) {
		overhead := object{}
		for _, name := range []string{"memory", "ephemeral-storage", "cpu"} {
			if w.chance(0.6) {
				overhead[name] = w.text(one(w.maker, w.size(), 10*mi))
			}
		}
		spec["overhead"] = overhead
	}
	if rich && w.chance(0.22) {
		spec["resources"] = w.podResources()
	}
	if w.chance(0.45) {
		spec["priority"] = one[any](w.maker, 0, 0, 1, 1, 10, 100, -1, -10, 1000, 1_000_000_000, 1_999_999_999, 2_000_000_000, 2_000_001_000, -2147483648, 2147483647, nil)
		if w.chance(0.6) { // the critical ones are rather rare
			spec["priority"] = one(w.maker, 0, 1, 1, 10, -1)
		}
	}
	if rich && w.chance(0.1) {
		spec["priorityClassName"] = one(w.maker, "system-node-critical", "system-cluster-critical", "high")
	}
	if w.chance(0.35) {
		spec["terminationGracePeriodSeconds"] = one(w.maker, 0, 1, 5, 10, 30, 30, 60, 3600, -1, -30)
	}
	if rich {
		w.makeMetadata(metadata)
		if w.chance(0.15) {
			spec["tolerations"] = w.tolerations()
		}
	}
	w.makeVolumes(spec, usage, limited, rich)
	pod := object{"metadata": metadata, "spec": spec}
	if rich && w.chance(0.2) {
		pod["status"] = w.status()
	}

	for _, c := range usage.containers {
		usage.memory += c.memory
		usage.ephemeral += c.rootfs + c.logs
	}
	for _, v := range usage.volumes {
		usage.ephemeral += v.used
	}
	if w.chance(0.25) {
		usage.memory = w.near(usage.memory)
	}
	if w.chance(0.25) {
		usage.ephemeral = w.near(usage.ephemeral)
	}
	if limited && w.chance(0.35) {
		usage.ephemeral = one(w.maker, 0, usage.ephemeral/8, w.size())
	}
	w.pods, w.usage = append(w.pods, pod), append(w.usage, usage)
}

func (w *world) makeContainer(name string, limited, rich bool) (object, containerUsage) {
	used := containerUsage{name: name, memory: w.size(), rootfs: w.size() / one[int64](w.maker, 1, 1, 10), logs: w.size() / one[int64](w.maker, 1, 1, 10), rootInodes: w.IntN64(2000), logInodes: w.IntN64(20)}
	requests, limits := object{}, object{}
	if w.chance(0.65) {
		request := w.size()
		requests["memory"] = w.text(request)
		used.memory = w.near(request)
		if w.chance(0.15) {
			limits["memory"] = requests["memory"]
		}
	}
	if w.chance(0.35) {
		request := w.size()
		if w.chance(0.15) {
			request = one[int64](w.maker, 10, 100, 500, 1000)
		}
		requests["ephemeral-storage"] = w.text(request)
		if w.chance(0.7) {
			used.rootfs = w.near(request) / 2
			used.logs = max(0, w.near(request)-used.rootfs)
		}
	}
	if limited && w.chance(0.6) {
		limit := w.size()
		limits["ephemeral-storage"] = w.text(limit)
		switch w.weighted(4, 2, 2) {
		case 0:
			used.logs = limit / 4
			used.rootfs = max(0, w.near(limit)-used.logs)
		case 1:
			used.logs = w.near(limit)
		case 2:
			used.rootfs, used.logs = limit/3, limit/3
		}
	}
	if w.chance(0.25) {
		requests["cpu"] = one[any](w.maker, "100m", "1", "0.5", 2, "0")
		if w.chance(0.5) {
			limits["cpu"] = requests["cpu"]
		}
	}
	if rich && w.chance(0.06) {
		requests[one(w.maker, "inodes", "pids", "hugepages-2Mi", "example.com/x", "storage")] = w.text(one[int64](w.maker, 1, 10, 500, 1500, 2*mi))
	}
	container := object{"name": name}
	resources := object{}
	if len(requests) > 0 {
		resources["requests"] = requests
	}
	if len(limits) > 0 {
		resources["limits"] = limits
	}
	if len(resources) > 0 || w.chance(0.1) {
		container["resources"] = resources
	}
	return container, used
}

func (w *world) podResources() object {
	some := func() object {
		list := object{}
		for _, name := range []string{"cpu", "memory", "hugepages-2Mi", "ephemeral-storage", "hugepages-", "inodes"} {
			if w.chance(map[string]float64{"cpu": 0.4, "memory": 0.65, "hugepages-2Mi": 0.1, "ephemeral-storage": 0.12, "hugepages-": 0.02, "inodes": 0.03}[name]) {
				if name == "cpu" {
					list[name] = one(w.maker, "1", "500m", "0")
				} else {
					list[name] = w.text(w.size())
				}
			}
		}
		return list
	}
	resources := object{}
	if w.chance(0.85) {
		resources["requests"] = some()
	}
	if w.chance(0.35) {
		resources["limits"] = some()
	}
	if w.chance(0.1) && resources["requests"] != nil {
		resources["limits"] = resources["requests"]
	}
	return resources
}

func (w *world) makeMetadata(metadata object) {
	annotations := object{}
	if w.chance(0.12) {
		annotations["kubernetes.io/config.source"] = one(w.maker, "api", "api", "file", "http", "", "API")
	}
	if w.chance(0.05) {
		annotations["kubernetes.io/config.mirror"] = one(w.maker, "abc", "")
	}
	if w.chance(0.1) {
		annotations["scheduler.alpha.kubernetes.io/critical-pod"] = ""
	}
	if len(annotations) > 0 {
		metadata["annotations"] = annotations
	}
	if w.chance(0.3) {
		metadata["generation"] = one(w.maker, 1, 1, 2, 7, 0, 123456789012)
	}
	if w.chance(0.05) {
		metadata["deletionTimestamp"] = "2026-01-05T07:59:00Z"
	}
	if w.chance(0.1) {
		metadata["labels"] = object{"app": "x"}
	}
	if w.chance(0.03) {
		delete(metadata, "namespace")
	}
}

func (w *world) tolerations() []object {
	list := []object{}
	for n := 1 + w.IntN(2); n > 0; n-- {
		t := object{}
		if w.chance(0.8) {
			t["key"] = one(w.maker, "node.kubernetes.io/memory-pressure", "node.kubernetes.io/memory-pressure", "node.kubernetes.io/disk-pressure", "x")
		}
		if w.chance(0.75) {
			t["operator"] = one(w.maker, "Exists", "Exists", "Equal", "", "Gt", "Lt", "exists")
		}
		if w.chance(0.5) {
			t["effect"] = one(w.maker, "NoSchedule", "NoSchedule", "NoExecute", "PreferNoSchedule", "")
		}
		if w.chance(0.15) {
			t["value"] = one(w.maker, "", "true", "5")
		}
		list = append(list, t)
	}
	return list
}

func (w *world) status() object {
	status := object{"phase": one(w.maker, "Running", "Running", "Pending", "Failed", "Succeeded")}
	if w.chance(0.3) {
		status["qosClass"] = one(w.maker, "BestEffort", "Burstable", "Guaranteed")
	}
	if w.chance(0.3) {
		status["reason"], status["message"] = "Old", "an old message"
	}
	conditions := []object{}
	if w.chance(0.4) {
		conditions = append(conditions, object{"type": "Ready", "status": "True"})
	}
	if w.chance(0.5) {
		conditions = append(conditions, object{"type": "DisruptionTarget", "status": one(w.maker, "True", "False", "Unknown"), "reason": one(w.maker, "EvictionByEvictionAPI", "TerminationByKubelet"), "message": "earlier", "observedGeneration": one(w.maker, 0, 1, 5), "lastTransitionTime": "2026-01-01T00:00:00Z"})
	}
	if w.chance(0.3) {
		conditions = append(conditions, object{"type": "PodScheduled", "status": "True", "reason": "r", "message": "m", "observedGeneration": 3})
	}
	if w.chance(0.06) {
		conditions = append(conditions, object{"type": "DisruptionTarget", "status": "False"})
	}
	if len(conditions) > 0 {
		status["conditions"] = conditions
	}
	if w.chance(0.1) {
		status["observedGeneration"] = 4
	}
	return status
}

func (w *world) makeVolumes(spec object, usage *podUsage, limited, rich bool) {
	if !limited && !w.diskish || !w.chance(0.6) {
		if !rich || !w.chance(0.2) {
			return
		}
	}
	names := []string{"cache", "data", "tmp", "cfg", "v5"}
	if w.chance(0.05) {
		names = []string{one(w.maker, "größe", "a\"b", "t\tb", "back\\slash", "new\nline", "\u200b", "é́", "😀", "\x7f", "\u00a0x", "<&>", "'", "\ufeff", "\U000e0001"), "cache", "cache", "tmp", "v"}
	}
	volumes := []object{}
	for i := range 1 + w.weighted(5, 3, 2, 1) {
		volume := object{"name": names[i]}
		used := volumeUsage{name: names[i], used: w.size(), inodes: w.IntN64(3000)}
		switch w.weighted(8, 1, 1, 1, 1, 0.7, 1, 0.3, 0.3) {
		case 0:
			dir := object{}
			switch w.weighted(8, 2, 0.7, 0.4, 0.3) {
			case 1:
				dir["medium"] = "Memory"
			case 2:
				dir["medium"] = "HugePages"
			case 3:
				dir["medium"] = "HugePages-2Mi"
			case 4:
				dir["medium"] = ""
			}
			if limited && w.chance(0.75) || w.chance(0.15) {
				limit := w.size()
				dir["sizeLimit"] = w.text(limit)
				if limited {
					used.used = w.near(limit)
				} else {
					used.used = min(used.used, limit)
				}
				if w.chance(0.06) {
					dir["sizeLimit"] = one[any](w.maker, "0", "-1", "-1Gi", nil, "0Mi", 0)
				}
			}
			volume["emptyDir"] = dir
		case 1:
			volume["hostPath"] = object{"path": "/x"}
		case 2:
			volume["configMap"] = object{"name": "c"}
		case 3:
			volume["secret"] = object{"secretName": "s"}
		case 4:
			volume["persistentVolumeClaim"] = object{"claimName": "p"}
		case 5:
			volume["gitRepo"] = object{"repository": "r"}
		case 6:
			volume["projected"] = object{"sources": []object{}}
		case 7:
			volume["downwardAPI"] = object{}
		case 8:
			volume["ephemeral"] = object{}
		}
		volumes = append(volumes, volume)
		if !w.chance(0.08) {
			usage.volumes = append(usage.volumes, used)
		}
	}
	if w.chance(0.06) {
		usage.volumes = append(usage.volumes, volumeUsage{"cache", w.size(), 3})
	}
	if w.chance(0.04) {
		usage.volumes = append(usage.volumes, volumeUsage{"unknown", w.size(), 9})
	}
	if w.chance(0.1) {
		slices.Reverse(usage.volumes)
	}
	spec["volumes"] = volumes
}
