//! Compares the messages and methods with `proto/api.proto`, and that file with k8s.io/cri-api.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use regex_lite::Regex;

use crate::client::Client;

const PROTO: &str = include_str!("../proto/api.proto");
const CODE: &str = include_str!("api.rs");
const MODULE: &str = "k8s.io/cri-api@v0.36.3";

/// Type and number by name, for each field of each message.
type Messages = BTreeMap<String, BTreeMap<String, (String, u32)>>;

/// Returns the blocks that begin with a line of `head` and end with a brace at the start of a line.
fn blocks(text: &str, head: &str) -> Vec<(String, String)> {
    let head = Regex::new(head).unwrap();
    let block = |found: regex_lite::Captures<'_>| {
        let from = found.get(0).unwrap().end();
        let to = text[from..].find("\n}").unwrap();
        (found[1].to_owned(), text[from..from + to].to_owned())
    };
    head.captures_iter(text).map(block).collect()
}

fn messages_of_proto() -> Messages {
    let field =
        Regex::new(r"(?m)^ +(repeated )?([\w.]+|map<string, ?string>) (\w+) = (\d+)\s*[;\[]").unwrap();
    let fields = |body: String| {
        field
            .captures_iter(&body)
            .map(|it| {
                let label = it.get(1).map_or("", |label| label.as_str());
                let base = it[2].replace("string,string", "string, string");
                (it[3].to_owned(), (format!("{label}{base}"), it[4].parse().unwrap()))
            })
            .collect()
    };
    let blocks = blocks(PROTO, r"(?m)^message (\w+) ?\{$");
    blocks.into_iter().map(|(name, body)| (name, fields(body))).collect()
}

fn messages_of_code() -> Messages {
    let field = Regex::new(r#"#\[prost\(([^)]*?)tag = "(\d+)"\)\]\s*pub (?:r#)?(\w+):\s+([^\n]+)"#).unwrap();
    let fields = |body: String| {
        field
            .captures_iter(&body)
            .map(|it| {
                let kind = &it[1];
                let label = if kind.contains("repeated") { "repeated " } else { "" };
                let base = match kind.split(',').next().unwrap() {
                    "message" => it[4].split(['<', '>', ',']).rfind(|part| is_type(part)).unwrap().to_owned(),
                    "btree_map = \"string" => "map<string, string>".to_owned(),
                    other if other.starts_with("enumeration") => other.split('"').nth(1).unwrap().to_owned(),
                    other => other.to_owned(),
                };
                (it[3].to_owned(), (format!("{label}{base}"), it[2].parse().unwrap()))
            })
            .collect()
    };
    blocks(CODE, r"(?m)^pub struct (\w+) \{$").into_iter().map(|(name, body)| (name, fields(body))).collect()
}

/// Returns whether this part of a path is a message, and not what contains it.
fn is_type(part: &str) -> bool {
    part.starts_with(|first: char| first.is_ascii_uppercase())
}

#[test]
fn each_field_is_that_of_the_proto() {
    let (proto, code) = (messages_of_proto(), messages_of_code());
    assert!(code.len() > 20 && code.values().map(BTreeMap::len).sum::<usize>() > 45, "{code:?}");
    for (message, fields) in &code {
        for (name, field) in fields {
            assert_eq!(proto[message].get(name), Some(field), "{message}.{name}");
        }
    }
    let attributes = CODE.matches("#[prost(").count();
    assert_eq!(attributes, code.values().map(BTreeMap::len).sum::<usize>(), "each field was read");
}

#[test]
fn each_enumeration_has_the_numbers_of_the_proto() {
    let value = Regex::new(r"(?m)^ +(\w+) += (\d+)[;,]").unwrap();
    let numbers = |body: &str| -> BTreeMap<String, String> {
        let plain = |name: &str| name.replace('_', "").to_lowercase();
        value.captures_iter(body).map(|it| (plain(&it[1]), it[2].to_owned())).collect()
    };
    let proto: BTreeMap<_, _> = blocks(PROTO, r"(?m)^enum (\w+) ?\{").into_iter().collect();
    let code = blocks(CODE, r"(?m)^pub enum (\w+) \{");
    assert_eq!(code.len(), 2);
    for (name, body) in code {
        assert_eq!(numbers(&body), numbers(&proto[&name]), "{name}");
    }
}

#[test]
fn each_method_is_that_of_the_proto() {
    let services: BTreeMap<_, _> = blocks(PROTO, r"(?m)^service (\w+) ?\{").into_iter().collect();
    for (service, method, request, response) in Client::METHODS {
        let name = |found: &str, empty: &str| match found {
            "()" => format!("{method}{empty}"),
            message => message.to_owned(),
        };
        let (request, response) = (name(request, "Request"), name(response, "Response"));
        let line = format!("rpc {method}({request}) returns ({response}) {{}}");
        assert!(services[*service].contains(&line), "{service}: {line}");
    }
}

#[test]
fn the_proto_is_that_of_the_module() {
    let output = Command::new("go").args(["mod", "download", "-json", MODULE]).current_dir("/").output();
    let json = match output {
        Ok(output) if output.status.success() => output.stdout,
        Ok(output) => tests::skip!("go: {}", String::from_utf8_lossy(&output.stdout)),
        Err(error) => tests::skip!("there is no Go here: {error}"),
    };
    let module: serde_json::Value = serde_json::from_slice(&json).unwrap();
    let path = Path::new(module["Dir"].as_str().unwrap()).join("pkg/apis/runtime/v1/api.proto");
    assert_eq!(std::fs::read_to_string(path).unwrap(), PROTO);
}
