//! The screen of `top` in docs/observability.md is the one that the tests of `top` compare.

use crate::read;

const SNAPSHOT: &str = "eviction-agent/src/top/snapshots/eviction_agent__top__tests__soft_80x24.snap";

#[test]
fn the_docs_show_the_screen_that_top_draws() {
    let page = read("docs/observability.md").text;
    let (_, rest) = page.split_once("# eviction-agent top\n").unwrap();
    let (shown, _) = rest.split_once("```").unwrap();
    let snapshot = read(SNAPSHOT).text;
    let drawn = snapshot.lines().filter_map(|line| line.strip_prefix('"')?.strip_suffix('"'));
    let drawn: Vec<_> = drawn.map(str::trim_end).collect();
    assert_eq!(shown.lines().collect::<Vec<_>>(), drawn);
    assert!(drawn.len() > 10, "{drawn:?}");
}
