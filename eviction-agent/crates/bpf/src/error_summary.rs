//! Errors of loading, in one line each.
#![forbid(unsafe_code)]

use std::error::Error;

use aya::programs::ProgramError;

/// An error and its causes in one short line. The verifier's log, which may be long, is cut
/// down to what it says last.
pub(super) fn brief(error: &(dyn Error + 'static)) -> String {
    if let Some(ProgramError::LoadError { io_error, verifier_log }) = error.downcast_ref() {
        let log = verifier_log.to_string();
        return match verdict(&log) {
            Some(verdict) => format!("the kernel refuses it: {io_error}: {verdict}"),
            None => format!("the kernel refuses it: {io_error}"),
        };
    }
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let error_text = error.to_string();
        if !text.contains(&error_text) {
            text = format!("{text}: {error_text}");
        }
        cause = error.source();
    }
    cut(text.lines().next().unwrap_or_default())
}

/// The line of a verifier's log that says what was wrong: the last one before its statistics.
fn verdict(log: &str) -> Option<String> {
    let statistics = ["processed ", "insns processed", "verification time", "stack depth", "peak_states"];
    log.lines()
        .map(str::trim)
        .rfind(|line| !line.is_empty() && !statistics.iter().any(|start| line.starts_with(start)))
        .map(cut)
}

fn cut(line: &str) -> String {
    const LONGEST: usize = 200;
    match line.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use aya::EbpfError;
    use aya::maps::MapError;

    use super::*;

    #[test]
    fn a_verifiers_verdict_is_its_last_line_before_the_statistics() {
        let log = "0: R1=ctx() R10=fp0\n; code\n12: (79) r1 = *(u64 *)(r2 +3)\n\
            access beyond struct cgroup at off 3 size 8\n\
            processed 13 insns (limit 1000000) max_states_per_insn 0\n\n";
        assert_eq!(verdict(log).as_deref(), Some("access beyond struct cgroup at off 3 size 8"));
        assert_eq!(verdict(""), None);
        assert_eq!(verdict("no such helper\ninsns processed 12625\n").as_deref(), Some("no such helper"));
        assert_eq!(verdict("processed 1 insns\n"), None);
    }

    #[test]
    fn a_long_line_is_cut_between_characters() {
        let line = "é".repeat(300);
        assert_eq!(cut(&line).chars().count(), 201);
        assert_eq!(cut("short"), "short");
    }

    #[test]
    fn an_error_is_told_with_its_causes_once() {
        let error = MapError::SyscallError(aya::sys::SyscallError {
            call: "bpf_map_create",
            io_error: std::io::Error::from_raw_os_error(1),
        });
        let text = brief(&EbpfError::from(error));
        assert!(text.contains("bpf_map_create") && text.contains("Operation not permitted"), "{text}");
        assert_eq!(text.matches("bpf_map_create").count(), 1, "{text}");
    }
}
