//! Flags and verbs of earlier versions, which are refused with their new names.

/// A flag of an earlier version: the name, what is used now, and whether it took a value.
const FLAGS: [(&str, &str); 9] = [
    ("--act", "--action none|kill|evict"),
    ("--rung", "--backend NAME"),
    ("--deny-rung", "--disable-backend NAME"),
    ("--state", "--state-dir DIR"),
    ("--accept", "--apply-config-now"),
    ("--pods", "--pods-file FILE"),
    ("--listen", "--listen-address ADDRESS"),
    ("--bpf-log", "--bpf-debug-log"),
    ("--explain", "the verb `explain FILE`"),
];

/// Values of `--act` that have other names now.
const ACTS: [(&str, &str); 2] =
    [("dry-run", "--action none"), ("evict-dry-run", "--action evict --dry-run=server")];

/// One error for each old flag or verb among these arguments, which are without the program's name.
pub(super) fn errors(arguments: &[String]) -> Vec<String> {
    let mut errors = Vec::new();
    let mut words = arguments.iter().map(String::as_str).take_while(|word| *word != "--").peekable();
    let mut verb = None;
    while let Some(word) = words.next() {
        if !word.starts_with('-') && verb.is_none() {
            verb = Some(word);
            if word == "node" {
                let rest = words.next_if_eq(&"clean").map_or_else(String::new, |clean| format!(" {clean}"));
                errors.push(format!("parse arguments: node{rest}: use the verb `cleanup NODE...`"));
            }
            continue;
        }
        let (flag, value) = word.split_once('=').map_or((word, None), |(flag, value)| (flag, Some(value)));
        let Some((_, new)) = FLAGS.iter().find(|(old, _)| *old == flag) else { continue };
        let value = value.or_else(|| words.peek().copied());
        let of_value = ACTS.iter().find(|(act, _)| flag == "--act" && value == Some(act));
        let new = of_value.map_or(new, |(_, new)| new);
        errors.push(format!("parse arguments: {flag}: use {new}"));
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errors_of(line: &str) -> Vec<String> {
        errors(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn each_old_flag_is_named_with_the_new_one() {
        for (old, new) in FLAGS {
            for line in [format!("run {old} x"), format!("run {old}=x")] {
                let expected = format!("parse arguments: {old}: use {new}");
                assert_eq!(errors_of(&line), [expected], "{line}");
            }
        }
    }

    #[test]
    fn the_old_actions_are_translated() {
        let errors = errors_of("run --act evict-dry-run --act=dry-run --act kill");
        let expected = ["--action evict --dry-run=server", "--action none", "--action none|kill|evict"];
        assert_eq!(errors, expected.map(|new| format!("parse arguments: --act: use {new}")));
    }

    #[test]
    fn the_old_verb_is_named_as_it_was_given() {
        assert_eq!(
            errors_of("node clean n1"),
            ["parse arguments: node clean: use the verb `cleanup NODE...`"]
        );
        assert_eq!(errors_of("node"), ["parse arguments: node: use the verb `cleanup NODE...`"]);
        assert_eq!(errors_of("cleanup node"), [""; 0]);
    }

    #[test]
    fn what_follows_two_dashes_is_no_flag() {
        assert_eq!(errors_of("run -- --act kill"), [""; 0]);
        assert_eq!(errors_of("run --action kill --pods-file x"), [""; 0]);
    }
}
