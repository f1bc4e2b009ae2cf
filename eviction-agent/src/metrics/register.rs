//! Under which name each metric is shown, and what it says of itself.

use prometheus_client::registry::Unit;

use super::Metrics;

impl Metrics {
    pub(super) fn register(&mut self) {
        let r = &mut self.registry;
        r.register("source_info", "1 for the rung that each kernel source uses", self.source.clone());
        r.register("source_lost", "Rungs that a kernel source lost while running", self.source_lost.clone());
        r.register("records", "Records read from the kernel's ring buffer", self.records.clone());
        r.register(
            "records_lost",
            "Records that did not fit into the ring buffer, by what they tell",
            self.records_lost.clone(),
        );
        r.register(
            "map_full",
            "Figures that found no room in a map of the kernel side",
            self.map_full.clone(),
        );
        r.register(
            "source_runs_missed",
            "Times that the kernel did not run a program since it was at work on that CPU, by what it tells about",
            self.runs_missed.clone(),
        );
        r.register(
            "walks_cut",
            "Charges that were not followed up to the root: their cgroup lies too deep",
            self.walks_cut.clone(),
        );
        r.register(
            "records_invalid",
            "Records of an unknown version, kind or length",
            self.records_invalid.clone(),
        );
        r.register(
            "cgroups_skipped",
            "Cgroups that cannot be read or are too many, as of the last look at the tree",
            self.cgroups_skipped.clone(),
        );
        r.register(
            "glances",
            "Glances at the figures of all cgroups by what came of them",
            self.glances.clone(),
        );
        r.register(
            "glance_walks",
            "Glances that came by a walk through the kernel's tree of cgroups, which it locks meanwhile",
            self.glance_walks.clone(),
        );
        r.register("looks", "Looks at the node by what caused them", self.looks.clone());
        r.register("signal_unknown", "Readings of a signal that were not known", self.unknown.clone());
        r.register(
            "signal_blind",
            "1 while a signal that thresholds ask for has been unknown for long",
            self.blind.clone(),
        );
        r.register(
            "readings_refused",
            "Times that readings of a signal began to be refused, by reason",
            self.refused.clone(),
        );
        r.register(
            "configuration_errors",
            "Times that a changed configuration could not be used",
            self.configuration_errors.clone(),
        );
        r.register(
            "configuration_pending",
            "1 while a changed configuration waits to take effect",
            self.configuration_pending.clone(),
        );
        r.register(
            "signal_available",
            "What is available of a signal, in bytes, inodes or process ids",
            self.available.clone(),
        );
        r.register("signal_capacity", "Capacity that a signal is held against", self.capacity.clone());
        r.register("threshold_met", "1 while a threshold is met", self.threshold_met.clone());
        r.register("node_condition", "1 while a node condition holds", self.condition.clone());
        r.register("decisions", "Decisions to evict a pod", self.decisions.clone());
        r.register("evictions", "Evictions carried out, by signal and namespace", self.evictions.clone());
        r.register("outcomes", "What came of decisions to evict", self.outcomes.clone());
        r.register(
            "api_unreachable",
            "1 while the API server cannot be asked for evictions",
            self.api_unreachable.clone(),
        );
        r.register(
            "state_writes",
            "Writes of what outlives the agent, by what came of them",
            self.state_writes.clone(),
        );
        r.register(
            "memory_releases",
            "Processes that were killed, by what came of giving back their memory at once",
            self.memory_releases.clone(),
        );
        r.register(
            "oom_kills",
            "Kernel OOM kills by whose limit was hit and by namespace",
            self.oom_kills.clone(),
        );
        r.register(
            "oom_kills_unattributed",
            "Kernel OOM kills that its own counts tell of and no program saw, by the count",
            self.oom_kills_unattributed.clone(),
        );
        r.register(
            "task_alarms",
            "Times that a cgroup forked too fast or came near its limit of tasks",
            self.task_alarms.clone(),
        );
        r.register(
            "limits",
            "Groups with a memory limit: watched, armed in the kernel, near it",
            self.limits.clone(),
        );
        r.register(
            "limit_crossings",
            "Times that a group came near its memory limit, or was so no more",
            self.limit_crossings.clone(),
        );
        r.register("pod_forks", "Tasks (threads included) that a pod made", self.pod_forks.clone());
        r.register("pod_execs", "Programs that a pod started", self.pod_execs.clone());
        r.register("pod_exits", "Tasks of a pod that ended", self.pod_exits.clone());
        r.register_with_unit(
            "pod_reclaim_stall",
            "Time that a pod's tasks spent in memcg direct reclaim, all together",
            Unit::Seconds,
            self.pod_reclaim_stall.clone(),
        );
        r.register(
            "pod_reclaims",
            "Times that a task of a pod entered memcg direct reclaim",
            self.pod_reclaims.clone(),
        );
        r.register_with_unit(
            "pod_reclaimed",
            "What a pod's tasks reclaimed in memcg direct reclaim",
            Unit::Bytes,
            self.pod_reclaimed.clone(),
        );
        r.register(
            "containers_ended",
            "Containers that ended by why: evicted, killed by the kernel, other",
            self.containers_ended.clone(),
        );
        r.register(
            "container_status_differences",
            "Containers whose status differs from the verdict on their end, by how",
            self.status_differences.clone(),
        );
        r.register(
            "odd_records",
            "Records of kills and ends that were repeated, late or absurd, since the start",
            self.odd_records.clone(),
        );
        r.register_with_unit(
            "crossing_to_decision",
            "From the kernel's stamp of a crossing to the decision",
            Unit::Seconds,
            self.crossing_to_decision.clone(),
        );
        r.register("pods", "Pods known to the agent", self.pods.clone());
        r.register("unmatched", "Pods without a cgroup and cgroups without a pod", self.unmatched.clone());
        r.register(
            "pods_file_errors",
            "Times that the pods file could not be used",
            self.pods_file_errors.clone(),
        );
        r.register(
            "api_events",
            "What was to be told as events of the API, by what became of it: noted, of it created, counted, dropped, refused",
            self.api_events.clone(),
        );
        r.register("api_connections", "Connections to the API server", self.api_connections.clone());
        r.register("api_requests", "Requests to the API server by outcome", self.api_requests.clone());
        r.register_with_unit(
            "api_answer_age",
            "Time since the API server answered last",
            Unit::Seconds,
            self.api_answer_age.clone(),
        );
        r.register("watch_events", "What happened to watches of the API server", self.watch_events.clone());
        r.register_with_unit(
            "watch_age",
            "Time since a list, an event or a bookmark came",
            Unit::Seconds,
            self.watch_age.clone(),
        );
        r.register("watched_objects", "Objects known from the API server", self.watched_objects.clone());
        r.register(
            "node_writes",
            "Writes of conditions and taints into the node's object by outcome",
            self.node_writes.clone(),
        );
        r.register(
            "node_marks_due",
            "1 while the node's object says something else than it should",
            self.node_marks_due.clone(),
        );
        r.register("notes_dropped", "Notes that the slow side could not take", self.notes_dropped.clone());
        r.register(
            "reflex_stands",
            "1 while a verdict stands that the kernel side may carry out",
            self.reflex_stands.clone(),
        );
        r.register(
            "reflex_kills",
            "Processes that the kernel side killed by a standing verdict",
            self.reflex_kills.clone(),
        );
        r.register(
            "reflex_idle",
            "Times that a reason came up for which no verdict may stand near a line",
            self.reflex_idle.clone(),
        );
        r.register(
            "reflex_withheld",
            "Verdicts that the kernel side did not carry out at a crossing, by reason, for each CPU",
            self.reflex_withheld.clone(),
        );
        r.register(
            "lines_dropped",
            "Lines of standard output or of a recording that were not taken in time, or could not be written",
            self.lines_dropped.clone(),
        );
        r.register(
            "log_lines_dropped",
            "Lines of the log that their reader did not take in time",
            self.log_lines_dropped.clone(),
        );
        r.register("loop_stalled", "1 while the reaction loop does not turn", self.loop_stalled.clone());
        r.register("loop_stalls", "Times that the reaction loop did not turn", self.loop_stalls.clone());
        r.register_with_unit(
            "last_turn_timestamp",
            "When the reaction loop turned last",
            Unit::Seconds,
            self.last_turn.clone(),
        );
    }
}
