//! Checks that user-facing text has no retired word. The list is `retired-words.txt`.

use std::collections::BTreeSet;
use std::process::{Command, Stdio};

use regex_lite::Regex;
use tests::agent;

use super::{Text, files, pages, read};

const LIST: &str = include_str!("retired-words.txt");

/// A line of the list.
struct RetiredWord {
    pattern: Regex,
    replacement: &'static str,
    /// Names of texts in which the word is allowed.
    allowed: Vec<&'static str>,
}

/// The parsed list.
struct Words {
    retired: Vec<RetiredWord>,
    /// Phrases that use a word rightly, which are removed from a text first.
    keep: Vec<Regex>,
}

/// Returns the regular expression for a pattern. A space in a pattern stands for any white space, since lines are
/// wrapped. A pattern that ends with a set of characters defines itself what comes after the word.
fn whole_words(pattern: &str) -> Regex {
    let end = if pattern.ends_with(']') { "" } else { "(?:$|[^a-z])" };
    let pattern = if pattern.contains('[') { pattern.to_owned() } else { pattern.replace(' ', "\\s+") };
    Regex::new(&format!("(?i)(?:^|[^a-z])(?:{pattern}){end}"))
        .unwrap_or_else(|error| panic!("{pattern}: {error}"))
}

impl Words {
    fn read(list: &'static str) -> Self {
        let mut words = Self { retired: Vec::new(), keep: Vec::new() };
        for line in list.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
            if let Some(phrase) = line.strip_prefix("keep: ") {
                let phrase = phrase.replace(' ', "\\s+");
                words.keep.push(Regex::new(&format!("(?i){phrase}")).unwrap());
                continue;
            }
            let (pattern, rest) = line.split_once(" => ").unwrap_or_else(|| panic!("no replacement: {line}"));
            let (replacement, allowed) = rest.split_once(" @ ").unwrap_or((rest, ""));
            let allowed = allowed.split(", ").filter(|name| !name.is_empty()).collect();
            words.retired.push(RetiredWord { pattern: whole_words(pattern), replacement, allowed });
        }
        words
    }

    /// Returns where a text has a retired word: the name of the text, the line, the word and what to write instead.
    fn find(&self, Text { name, text }: &Text) -> Vec<String> {
        let keep = |text: String, phrase: &Regex| {
            // The replacement has the same length, so that lines can still be counted.
            let blank = |found: &regex_lite::Captures<'_>| {
                let blank = |it: char| if it == '\n' { "\n".to_owned() } else { "0".repeat(it.len_utf8()) };
                found[0].chars().map(blank).collect::<String>()
            };
            phrase.replace_all(&text, blank).into_owned()
        };
        let text = self.keep.iter().fold(text.clone(), keep);
        let mut found = BTreeSet::new();
        for RetiredWord { pattern, replacement, allowed } in &self.retired {
            if allowed.contains(&name.as_str()) {
                continue;
            }
            for word in pattern.find_iter(&text) {
                // The match begins with the character before the word.
                let before = text[..word.start()].matches('\n').count();
                let line = before + usize::from(word.as_str().starts_with('\n')) + 1;
                let word = word.as_str().trim_matches(|it: char| !it.is_ascii_alphanumeric() && it != '-');
                found.insert((line, format!("{word:?}: write {replacement:?}")));
            }
        }
        found.into_iter().map(|(line, what)| format!("{name}:{line}: {what}")).collect()
    }
}

/// Appends the `--help` text of the agent and of each verb to `texts`.
fn help(arguments: &[String], texts: &mut Vec<Text>) {
    let mut command = Command::new(agent::binary().unwrap());
    command.args(arguments).arg("--help").env("NO_COLOR", "1").env("COLUMNS", "200").stdin(Stdio::null());
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let verbs: Vec<String> = verbs(&text).map(str::to_owned).collect();
    texts.push(Text { name: format!("eviction-agent {} --help", arguments.join(" ")), text });
    for verb in verbs {
        help(&[arguments, &[verb]].concat(), texts);
    }
}

/// Returns the verbs that a help text lists, except `help` itself.
fn verbs(help: &str) -> impl Iterator<Item = &str> {
    let list = help.split_once("Commands:\n").map_or("", |(_, rest)| rest);
    let lines = list.lines().take_while(|line| line.starts_with(' '));
    let named = lines.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    named.filter_map(|line| line.split_whitespace().next()).filter(|verb| *verb != "help")
}

/// Returns the comments of a source file that are descriptions as well.
fn descriptions(name: &str) -> Text {
    let Text { name, text } = read(name);
    let lines = text.lines().map(|line| line.trim_start().strip_prefix("///").unwrap_or_default());
    Text { name, text: lines.collect::<Vec<_>>().join("\n") }
}

/// Returns the changelog without its table of old and new names, which has the old ones.
fn without_table(text: &str) -> String {
    let line = |line: &'_ str| if line.starts_with("| ") { String::new() } else { line.to_owned() };
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}

#[test]
fn no_retired_word_is_left_in_the_docs() {
    let words = Words::read(LIST);
    let mut texts = pages();
    for page in &mut texts {
        if page.name == "CHANGELOG.md" {
            page.text = without_table(&page.text);
        }
    }
    texts.extend(files("deploy"));
    report(&words, &texts);
}

#[test]
fn no_retired_word_is_left_in_help_schema_and_metrics() {
    let words = Words::read(LIST);
    let mut texts = vec![
        read("eviction-agent/crates/config/schema/agent-configuration.v1alpha1.json"),
        descriptions("eviction-agent/src/telemetry/metrics.rs"),
    ];
    help(&[], &mut texts);
    assert!(texts.len() > 7, "there is no help for most verbs");
    report(&words, &texts);
}

#[test]
fn no_retired_word_is_left_in_the_text_of_check() {
    let texts = ["table", "wide"].map(|format| {
        let mut command = Command::new(agent::binary().unwrap());
        command.args(["check", "--output", format]).env("NO_COLOR", "1").stdin(Stdio::null());
        // Whether the agent would start depends on the machine.
        let output = command.output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains("SOURCE"), "{command:?}: {text}");
        Text { name: format!("eviction-agent check -o {format}"), text }
    });
    report(&Words::read(LIST), &texts);
}

fn report(words: &Words, texts: &[Text]) {
    let found: Vec<String> = texts.iter().flat_map(|text| words.find(text)).collect();
    assert!(found.is_empty(), "{} retired words:\n{}", found.len(), found.join("\n"));
}

#[test]
fn whole_words_are_found_in_prose_and_in_names() {
    let list = "rungs? => backend @ a.md\nkill hand => killer\nkeep: command line\nlines? => threshold\n";
    let words = Words::read(list);
    let find = |name: &str, text: &str| words.find(&Text { name: name.to_owned(), text: text.to_owned() });
    assert_eq!(find("b.md", "x\nThe Rung\n"), ["b.md:2: \"Rung\": write \"backend\""]);
    assert_eq!(find("b.md", "rung\n"), ["b.md:1: \"rung\": write \"backend\""]);
    assert_eq!(find("b.md", "x\nrung\n"), ["b.md:2: \"rung\": write \"backend\""]);
    assert_eq!(find("b.md", "{rung=\"x\"}\n--deny-rung\nmy_rung").len(), 3);
    assert_eq!(find("b.md", "the kill\nhand").len(), 1);
    for right in ["wrung, rungus", "the command line", "command\nline", "other hand"] {
        assert!(find("b.md", right).is_empty(), "{right}");
    }
    assert!(find("a.md", "a rung").is_empty());
    assert_eq!(without_table("a\n| old rung | new |\nb"), "a\n\nb");
}

#[test]
fn the_list_finds_each_word_that_it_replaces() {
    let words = Words::read(LIST);
    assert!(words.retired.len() > 50);
    for text in [
        "the next rung of the ladder",
        "eviction_agent_reflex_kills_total",
        "hands.hardAction",
        "`run --act kill`",
        "near a line",
        "the kill hand",
        "nobody goes",
        "each full look",
        "a verdict",
    ] {
        let found = words.find(&Text { name: "page".to_owned(), text: text.to_owned() });
        assert!(!found.is_empty(), "{text}");
    }
    for text in [
        "on the other hand, the command line has one line per source",
        "look at the in-flight eviction",
        "run `eviction-agent run --action kill --pods-file FILE`",
    ] {
        let found = words.find(&Text { name: "page".to_owned(), text: text.to_owned() });
        assert!(found.is_empty(), "{found:?}");
    }
}
