package main

import (
	"regexp"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
)

// The mix "texts": small scenarios about one text each, so that every way of
// reading and writing a quantity, percentage or duration is seen in an outcome.

// Exponents of this size make the kubelet's code busy for hours.
var wideExponent = regexp.MustCompile(`[eE][-+]?0*[1-9][0-9]{2}`)

func (m maker) letters(alphabet string, most int) string {
	var b strings.Builder
	runes := []rune(alphabet)
	for n := m.IntN(most + 1); n > 0; n-- {
		b.WriteRune(runes[m.IntN(len(runes))])
	}
	return b.String()
}

func (m maker) digits(most int) string { return m.letters("0123456789000", most) }

// anyQuantity is a text that may or may not be a quantity.
func (m maker) anyQuantity() string {
	switch m.weighted(2, 1.5, 6, 1, 2) {
	case 0:
		return one(m, oddQuantities...)
	case 1:
		return one(m, badQuantities...)
	case 3:
		text := m.letters("+-0123456789.eEinumkKMGTP ", 7)
		if wideExponent.MatchString(text) {
			return "1"
		}
		return text
	case 4:
		return m.quantity(m.Int64N(one[int64](m, 100, 10_000, 1<<30, 1<<40, 1<<62)), 1)
	}
	text := one(m, "", "", "", "", "+", "-")
	text += m.digits(one(m, 1, 2, 4, 9, 19, 22))
	if m.chance(0.5) {
		text += "." + m.digits(one(m, 0, 1, 3, 10, 12))
	}
	return text + one(m, "", "", "n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei", "e"+one(m, "", "+", "-")+strconv.Itoa(m.IntN(24)), "E"+one(m, "", "+", "-", "0")+strconv.Itoa(m.IntN(24)))
}

func (m maker) anyPercent() string {
	switch m.weighted(2, 2, 4, 1, 1) {
	case 0:
		return one(m, oddPercents...)
	case 1:
		return one(m, badPercents...)
	case 3:
		return m.letters("+-0123456789.eEpPxX_naifNIFty", 7) + "%"
	case 4: // hexadecimal
		return one(m, "", "+", "-") + one(m, "0x", "0X") + m.letters("0123456789abcdefABCDEF_", 5) + one(m, "", ".", "."+m.letters("048cC", 3)) + one(m, "", "p", "P", "p+", "p-") + m.digits(2) + "%"
	}
	text := one(m, "", "", "", "", "+", "-") + m.digits(one(m, 1, 2, 3, 9, 20))
	if m.chance(0.6) {
		text += "." + m.digits(one(m, 0, 1, 3, 12, 20))
	}
	if m.chance(0.25) {
		text += one(m, "e", "E") + one(m, "", "+", "-") + m.digits(2)
	}
	return text + one(m, "%", "%", "%", "%%")
}

func (m maker) anyDuration() string {
	switch m.weighted(2, 2, 5, 1) {
	case 0:
		return one(m, goodGraces...)
	case 1:
		return one(m, badGraces...)
	case 3:
		return m.letters("+-0123456789.hmsnuµμ ", 6)
	}
	text := one(m, "", "", "", "+", "-")
	for n := 1 + m.IntN(3); n > 0; n-- {
		text += m.digits(one(m, 1, 2, 3, 19))
		if m.chance(0.4) {
			text += "." + m.digits(one(m, 0, 1, 3, 20))
		}
		text += one(m, "h", "m", "s", "s", "ms", "us", "µs", "μs", "ns", "")
	}
	return text
}

// valid makes a quantity that a pod may have.
func (m maker) valid() string {
	for {
		text := m.anyQuantity()
		if _, err := resource.ParseQuantity(text); err == nil && text == strings.TrimSpace(text) {
			return text
		}
	}
}

func (m maker) textScenario(name string) []byte {
	const signal = "memory.available"
	config := object{"evictionPressureTransitionPeriod": "1s"}
	metadata := object{"name": "pod", "namespace": "default", "uid": "u"}
	container := object{"name": "main"}
	spec := object{"containers": []object{container}}
	capacity := one[uint64](m, 1<<30, 1_000_000_000_000, 1000, 8<<30, 16<<30+12345, 1<<62, 1<<63-1, 97, 0)
	stats := object{"podRef": metadata, "containers": []object{{"name": "main", "memory": object{"workingSetBytes": 5 << 30}}}, "memory": object{"workingSetBytes": 5 << 30}}
	at := start
	steps := []object{}
	step := func(available uint64) {
		used := uint64(0)
		if available < capacity {
			used = capacity - available
		}
		steps = append(steps, object{"at": at.Format(time.RFC3339Nano), "summary": object{
			"node": object{"nodeName": "node", "memory": object{"availableBytes": available, "workingSetBytes": used, "time": at.Format(time.RFC3339Nano)}},
			"pods": []object{stats}}})
	}
	text := m.anyQuantity()
	if m.chance(0.45) {
		text = m.anyPercent()
	}
	bound := func(text string) uint64 {
		if strings.HasSuffix(text, "%") {
			share, err := strconv.ParseFloat(strings.TrimRight(text, "%"), 32)
			if err != nil || !(share >= 0 && share <= 1e4) {
				return 0
			}
			return uint64(max(0, float64(capacity)*float64(float32(share)/100)))
		}
		quantity, err := resource.ParseQuantity(text)
		if err != nil {
			return 0
		}
		return uint64(max(0, quantity.Value()))
	}
	around := func(v uint64) uint64 {
		return one(m, v, v+1, max(v, 1)-1, max(v, 1)-1, v/2, 0, v*2)
	}
	switch m.IntN(9) {
	case 0, 1:
		config["evictionHard"] = object{signal: text}
		step(around(bound(text)))
	case 2:
		config["evictionHard"] = object{}
		config["evictionSoft"] = object{signal: text}
		config["evictionSoftGracePeriod"] = object{signal: one(m, "0", "0s", "5s")}
		step(around(bound(text)))
	case 3:
		grace := m.anyDuration()
		config["evictionHard"] = object{}
		config["evictionSoft"] = object{signal: "50%"}
		config["evictionSoftGracePeriod"] = object{signal: grace}
		step(0)
		if span, err := time.ParseDuration(grace); err == nil && span >= 0 && span < 10000*time.Hour {
			at = at.Add(span + one[time.Duration](m, 0, 0, -1, 1))
		}
		step(0)
	case 4:
		if m.chance(0.2) {
			text = one(m, reclaimPercents...)
		}
		threshold := one(m, "10%", "100", "1Mi", "1500m", "50Mi")
		config["evictionHard"] = object{signal: threshold}
		config["evictionMinimumReclaim"] = object{signal: text}
		metadata["uid"] = "u"
		at = at.Add(time.Second)
		step(0)
		steps[0]["killError"] = "stays"
		at = at.Add(10 * time.Second)
		step(around(bound(threshold) + bound(text)))
	case 5: // a request in a message
		config["evictionHard"] = object{signal: "99%"}
		capacity = 1 << 30
		lists := []object{{"requests": object{"memory": m.valid()}}, {"requests": object{"memory": m.valid()}}}
		container["resources"] = lists[0]
		if m.chance(0.4) {
			spec["resources"] = lists[1]
		}
		usage := one[uint64](m, 1<<63-1, 5<<30, 1, 0, 1000, 1<<63)
		stats["memory"] = object{"workingSetBytes": usage}
		stats["containers"] = []object{{"name": "main", "memory": object{"workingSetBytes": usage}}}
		step(m.Uint64N(1 << 29))
	case 6: // limits, and their sum
		config["evictionHard"] = object{}
		containers := []object{}
		for i := range 1 + m.IntN(3) {
			containers = append(containers, object{"name": []string{"main", "b", "c"}[i], "resources": object{"limits": object{"ephemeral-storage": m.valid()}}})
		}
		spec["containers"] = containers
		if m.chance(0.3) {
			spec["overhead"] = object{"ephemeral-storage": m.valid()}
		}
		if m.chance(0.3) {
			init := object{"name": "i", "resources": object{"limits": object{"ephemeral-storage": m.valid()}}}
			if m.chance(0.5) {
				init["restartPolicy"] = "Always"
			}
			spec["initContainers"] = []object{init}
		}
		used := one[uint64](m, 1<<63-1, 1<<63-1, 1<<40, 1000, 1, 0)
		stats["ephemeral-storage"] = object{"usedBytes": used}
		if m.chance(0.4) {
			stats["ephemeral-storage"] = object{"usedBytes": 0}
			stats["containers"] = []object{{"name": "main", "logs": object{"usedBytes": used}, "rootfs": object{"usedBytes": one[uint64](m, 0, 1, 1<<62, 1<<63-1)}}}
		}
		step(1)
	case 7: // size limit of a volume
		config["evictionHard"] = object{}
		limit := m.valid()
		volume := one(m, "cache", "v", "größe \"x\"", string(rune(m.IntN(0x3000))), string(rune(0x20+m.IntN(0x1fa00))))
		spec["volumes"] = []object{{"name": volume, "emptyDir": object{"sizeLimit": limit}}}
		stats["volume"] = []object{{"name": volume, "usedBytes": one(m, 1<<63-1, around(bound(limit)), 1<<40)}}
		step(1)
	case 8: // values in a message
		config["evictionHard"] = object{signal: "100.0%", "pid.available": one(m, "99%", "1Gi", "5e9", "1e30")}
		capacity = one[uint64](m, 1<<63, 1<<63-1, 1<<62, 1<<40, 1_000_000, 1<<63+1<<20)
		usage := one[uint64](m, 1<<63-1, 5<<30, 1_000_000, 1023, 1024, 1025, 3<<40, 1<<63, 1<<63-1<<20, m.Uint64(), m.Uint64N(1<<40)<<10)
		stats["containers"] = []object{{"name": "main", "memory": object{"workingSetBytes": usage}}}
		stats["memory"] = object{"workingSetBytes": usage}
		if m.chance(0.5) {
			spec["resources"] = object{"requests": object{"memory": "1"}}
		}
		step(one(m, 0, 1, 1000, 1<<20, capacity/2, m.Uint64N(1<<50)))
		if m.chance(0.4) {
			delete(config["evictionHard"].(object), signal)
			node := steps[0]["summary"].(object)["node"].(object)
			node["rlimit"] = object{"maxpid": one[int64](m, 32768, 4194304, 1<<40, 1<<63-1), "curproc": one[int64](m, 0, 1, 32000, 40000, 4194000, -1<<63), "time": at.Format(time.RFC3339Nano)}
		}
	}
	return encode(object{"name": name, "kubeletConfiguration": config, "filesystems": object{"dedicatedImageFs": m.chance(0.3), "splitImageFs": false}, "pods": []object{{"metadata": metadata, "spec": spec}}, "steps": steps})
}
