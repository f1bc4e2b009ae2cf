// Placed into package k8s.io/kubernetes/pkg/kubelet/eviction by the build's
// overlay. It opens the few doors the oracle needs and nothing else.

package eviction

import (
	"context"
	"slices"

	v1 "k8s.io/api/core/v1"
)

// OraclePick returns a number in [0, n). The oracle sets it; without it order stays
// as Go's maps give it.
var OraclePick func(n int) int

// OracleWidest is the largest number of entries seen by oracleTurn since it was last cleared.
var OracleWidest int

// oracleTurn rotates a list that was just read from a map. A map of up to eight
// entries is walked from a random start in order of insertion, so this adds no order that
// Go could not have given; it only makes the rare ones as frequent as the others.
func oracleTurn[T any](list []T) []T {
	OracleWidest = max(OracleWidest, len(list))
	if OraclePick == nil || len(list) < 2 {
		return list
	}
	at := OraclePick(len(list))
	return slices.Concat(list[at:], list[:at])
}

// OraclePass runs one pass of a manager made by NewManager.
func OraclePass(ctx context.Context, manager Manager, disk DiskInfoProvider, pods ActivePodsFunc) ([]*v1.Pod, error) {
	return manager.(*managerImpl).synchronize(ctx, disk, pods)
}

// OracleConditions lists the node conditions in the manager's own order.
func OracleConditions(manager Manager) []v1.NodeConditionType {
	return slices.Clone(manager.(*managerImpl).nodeConditions)
}
