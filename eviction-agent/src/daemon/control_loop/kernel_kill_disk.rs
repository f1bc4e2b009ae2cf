//! Kernel kill for writers: arms a kill order on the first candidate for `nodefs.available` while it is near.

use eviction_core::decision::Evaluation;
use eviction_core::engine::kernel_kill::NotArmedReason;
use eviction_core::policy::eviction_settings::NodeReclaim;
use eviction_core::signal::Signal;
use eviction_core::time::nanos;
use eviction_node::sampler::CompleteSample;

use super::super::kernel_kill::KernelKillIdle;
use super::ControlLoop;
use super::pod_storage::{Extent, MAX_AGE};

const SIGNAL: Signal = Signal::NodeFsAvailable;

impl ControlLoop {
    /// Returns whether only a full sync can arm or renew the order. No order is armed while an eviction is
    /// executed.
    pub(super) fn disk_kill_needs_sync(&self, now_ns: u64) -> bool {
        self.engine.policy().kernel_kill.includes(SIGNAL)
            && self.executing().next().is_none()
            && self.storage.may_read_for_kill_order(now_ns)
            && self.writers_device().is_some()
    }

    /// Returns the file system whose writers can be killed in the kernel: nodefs, while its threshold is near.
    fn writers_device(&self) -> Option<u64> {
        let [node, _] = self.node_sampler.disks.ext4_devices();
        let device = node?;
        self.notifier.bpf.can_kill_writers(device).then_some(device)
    }

    /// Arms the order until the next reading of pods' storage, if one may be armed.
    pub(super) fn arm_disk_kill(&mut self, node_sample: &CompleteSample) {
        let is_wanted = self.engine.policy().kernel_kill.includes(SIGNAL);
        if !is_wanted && !self.disk_kill_orders.is_chosen {
            return;
        }
        if let Err(idle) = self.try_arm_disk_kill(node_sample) {
            self.disk_kill_orders.withdraw_because(idle, &mut self.notifier.bpf, &self.metrics);
        }
        self.notifier.bpf.export_suppressed(&self.metrics);
        self.export_armed();
    }

    fn try_arm_disk_kill(&mut self, node_sample: &CompleteSample) -> Result<(), KernelKillIdle> {
        let (at, now_ns) = (node_sample.at, node_sample.at.mono_ns);
        if !self.engine.policy().kernel_kill.includes(SIGNAL) {
            return Err(KernelKillIdle::NoOrder(NotArmedReason::Off));
        }
        let device = self.writers_device().ok_or(KernelKillIdle::NoOrder(NotArmedReason::Far))?;
        if self.executing().next().is_some() || self.disk_kill_orders.awaits_event(now_ns) {
            return Err(KernelKillIdle::InFlight);
        }
        if self.storage.may_read_for_kill_order(now_ns) {
            self.request_storage(Extent::All);
        }
        let read_ns = self.storage.ranked_by(now_ns);
        let read_ns = read_ns.ok_or(KernelKillIdle::NoOrder(NotArmedReason::UsageUnknown))?;
        // An order is valid for as long as the reading that its pod was chosen on.
        let expires_ns = read_ns.saturating_add(nanos(MAX_AGE));
        if !self.disk_kill_orders.is_chosen_until(expires_ns) {
            let (order, victim_id) = self.choose_victim(node_sample, SIGNAL, u64::MAX)?;
            if order.decision.evaluation().is_none_or(|evaluation| self.reclaims_first(evaluation)) {
                return Err(KernelKillIdle::ReclaimFirst);
            }
            self.disk_kill_orders.choose(order, victim_id, at, expires_ns);
        }
        let disks = &self.node_sampler.disks;
        self.disk_kill_orders
            .arm_for_writers(&mut self.notifier.bpf, device, at, || disks.node_fs_available())
    }

    /// Returns whether node reclaim is attempted before this evaluation evicts a pod.
    fn reclaims_first(&self, evaluation: &Evaluation) -> bool {
        match self.engine.policy().eviction.node_reclaim {
            NodeReclaim::Off => false,
            NodeReclaim::Cri => true,
            NodeReclaim::Kubelet => self
                .estimate(evaluation, SIGNAL)
                .is_some_and(|estimate| estimate.unused_bytes >= estimate.deficit_bytes),
        }
    }
}
