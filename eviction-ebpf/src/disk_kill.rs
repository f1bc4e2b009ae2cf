//! Kernel kill for writers: carries out the armed order on the process that makes the buffered write whose
//! block crosses the threshold. Such a write checks for fatal signals before each page, so the process stops
//! writing.

use aya_ebpf::{helpers::bpf_ktime_get_ns, macros::map, maps::Array};
use eviction_common::{ChargingProcess, DiskKillOrder, KernelKillCause, MAX_ANCESTORS};

use crate::{
    config::{has_kernel_kill, offset},
    kernel_kill::{DecidedOrder, carry_out, running},
    memcg::{css_of_task, id_of_css},
    probe_read::{Probe, Read},
};

/// The armed order.
#[map]
static DISK_KILL_ORDER: Array<DiskKillOrder> = Array::with_max_entries(1, 0);

/// Applies the armed order to a write of the running task, which is in the memory cgroup `leaf_id`. `taken`
/// is the number of bytes that were observed to be taken from the device, including this write.
#[inline(always)]
pub(crate) fn apply_kill_order(device: u32, taken: i64, leaf_id: u64) {
    if !has_kernel_kill() {
        return;
    }
    let Some(order) = DISK_KILL_ORDER.get(0) else { return };
    // SAFETY: the map's value; volatile, since user space writes it.
    let order = unsafe { core::ptr::read_volatile(order) };
    let decision = order.decide(device.into(), taken, || {
        let running = running();
        ChargingProcess {
            is_within_victim: is_within(running.task, order.victim_id),
            tgid: running.tgid,
            has_memory: running.mm != 0,
            is_in_charged_cgroup: true,
            // SAFETY: a helper without arguments.
            now_ns: unsafe { bpf_ktime_get_ns() },
        }
    });
    let DiskKillOrder { generation, victim_id, .. } = order;
    let cause = KernelKillCause::Disk;
    carry_out(decision, &DecidedOrder { cause, generation, victim_id, leaf_id, usage: 0 });
}

/// Returns whether the running task `running` is in this memory cgroup or below it.
#[inline(always)]
fn is_within(running: *const u8, cgroup_id: u64) -> bool {
    // SAFETY: the running task.
    let mut css = unsafe { css_of_task::<Probe>(running) };
    for _ in 0..MAX_ANCESTORS {
        if css.is_null() {
            return false;
        }
        // SAFETY: a css; any address can be read.
        unsafe {
            if id_of_css::<Probe>(css) == cgroup_id {
                return true;
            }
            css = Probe::at::<usize>(css, offset!(css_parent)) as *const u8;
        }
    }
    false
}
