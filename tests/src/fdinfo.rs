//! The kernel's information about the descriptors of a process (`/proc/PID/fdinfo`).

use std::fs;
use std::io;

/// The kernel's information about one descriptor.
#[derive(Clone, Debug)]
pub struct FdInfo {
    /// The descriptor.
    pub number: u32,
    text: String,
}

impl FdInfo {
    /// Returns the information about all descriptors of a process, except those that it closes meanwhile.
    ///
    /// # Errors
    /// If they cannot be listed, for instance because the process has ended.
    pub fn all(pid: u32) -> io::Result<Vec<Self>> {
        let mut all = Vec::new();
        for entry in fs::read_dir(format!("/proc/{pid}/fdinfo"))? {
            let entry = entry?;
            let number = entry.file_name().to_str().and_then(|name| name.parse().ok());
            if let (Some(number), Ok(text)) = (number, fs::read_to_string(entry.path())) {
                all.push(Self { number, text });
            }
        }
        Ok(all)
    }

    /// Returns the number in the field of this name.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<u64> {
        let mut fields = self.text.lines().filter_map(|line| line.split_once(':'));
        fields.find(|(found, _)| *found == name)?.1.trim().parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_by_their_whole_name() {
        let info = |text: &str| FdInfo { number: 7, text: text.to_owned() };
        let program =
            info("pos:\t0\nprog_type:\t26\nprog_tag:\t83bf12\nprog_id:\t417\nrun_time_ns:\t12345\n");
        assert_eq!((program.field("prog_id"), program.field("run_time_ns")), (Some(417), Some(12345)));
        assert_eq!((program.field("id"), program.field("prog_tag")), (None, None));
        let link = info("link_type:\ttracing\nlink_id:\t7\nprog_id:\t417\n");
        assert_eq!((link.field("prog_id"), link.field("run_time_ns")), (Some(417), None));
        assert_eq!((info("pos:\t0\n").field("pos"), info("pos:\t0\n").field("prog_id")), (Some(0), None));
    }

    #[test]
    fn own_descriptors_are_listed() {
        let file = fs::File::open("/proc/self/stat").unwrap();
        let number = std::os::fd::AsRawFd::as_raw_fd(&file).unsigned_abs();
        let all = FdInfo::all(std::process::id()).unwrap();
        assert!(all.iter().any(|info| info.number == number && info.field("pos") == Some(0)), "{all:?}");
    }
}
