//! Paths as they are written: in `use` items, in code, and in the tokens of macros.

use proc_macro2::{Ident, Span, TokenStream, TokenTree};
use syn::{ItemUse, UseTree};

/// A path before it is resolved.
#[derive(Clone, Debug)]
pub(super) struct RawPath {
    /// Whether it starts with `::`, and so with the name of a crate.
    pub(super) global: bool,
    pub(super) segments: Vec<String>,
    pub(super) span: Span,
}

impl RawPath {
    /// A path in code.
    pub(super) fn of(path: &syn::Path) -> Self {
        Self {
            global: path.leading_colon.is_some(),
            segments: path.segments.iter().map(|segment| text(&segment.ident)).collect(),
            span: path.segments.first().map_or_else(Span::call_site, |first| first.ident.span()),
        }
    }

    /// A crate by its name.
    pub(super) fn of_crate(name: &Ident) -> Self {
        let name_text = text(name);
        Self { global: name_text != "self", segments: vec![name_text], span: name.span() }
    }
}

/// An identifier without the `r#` of a raw one.
fn text(ident: &Ident) -> String {
    let text = ident.to_string();
    text.strip_prefix("r#").map_or_else(|| text.clone(), str::to_owned)
}

/// One leaf of a `use` item.
#[derive(Debug)]
pub(super) struct Import {
    pub(super) path: RawPath,
    /// The name it gets here; none for `as _` and for `*`.
    pub(super) name: Option<String>,
    pub(super) glob: bool,
}

/// The leaves of a `use` item.
pub(super) fn flatten(item: &ItemUse) -> Vec<Import> {
    let mut leaves = Vec::new();
    let prefix =
        RawPath { global: item.leading_colon.is_some(), segments: Vec::new(), span: item.use_token.span };
    add_leaves(&prefix, &item.tree, &mut leaves);
    leaves
}

fn add_leaves(prefix: &RawPath, tree: &UseTree, leaves: &mut Vec<Import>) {
    let longer = |ident: &Ident| {
        let mut path = prefix.clone();
        // `use a::{self}` imports `a`.
        if *ident != "self" || path.segments.is_empty() {
            path.segments.push(text(ident));
        }
        path.span = ident.span();
        path
    };
    let mut leaf = |path: RawPath, name: Option<String>, glob| {
        leaves.push(Import { path, name, glob });
    };
    match tree {
        UseTree::Path(path) => add_leaves(&longer(&path.ident), &path.tree, leaves),
        UseTree::Name(name) => {
            let path = longer(&name.ident);
            let last = path.segments.last().cloned();
            leaf(path, last, false);
        }
        UseTree::Rename(rename) => {
            let name = text(&rename.rename);
            leaf(longer(&rename.ident), (name != "_").then_some(name), false);
        }
        UseTree::Glob(glob) => {
            let mut path = prefix.clone();
            path.span = glob.star_token.span;
            leaf(path, None, true);
        }
        UseTree::Group(group) => {
            for tree in &group.items {
                add_leaves(prefix, tree, leaves);
            }
        }
    }
}

/// The `use` items in the tokens of a macro.
pub(super) fn token_uses(tokens: &TokenStream) -> Vec<ItemUse> {
    let mut found = Vec::new();
    let trees: Vec<TokenTree> = tokens.clone().into_iter().collect();
    for (start, tree) in trees.iter().enumerate() {
        match tree {
            TokenTree::Group(group) => found.extend(token_uses(&group.stream())),
            TokenTree::Ident(word) if *word == "use" => {
                let end = trees[start..].iter().position(|tree| is_punct(tree, ';'));
                let item = end.map(|end| trees[start..=start + end].iter().cloned().collect());
                found.extend(item.and_then(|item: TokenStream| syn::parse2::<ItemUse>(item).ok()));
            }
            _ => {}
        }
    }
    found
}

/// The paths of two or more segments in the tokens of a macro.
pub(super) fn token_paths(tokens: &TokenStream) -> Vec<RawPath> {
    let mut found = Vec::new();
    let trees: Vec<TokenTree> = tokens.clone().into_iter().collect();
    let mut at = 0;
    while let Some(tree) = trees.get(at) {
        match tree {
            TokenTree::Group(group) => {
                found.extend(token_paths(&group.stream()));
                at += 1;
            }
            TokenTree::Ident(_) => {
                let (path, after) = path_at(&trees, at);
                if path.segments.len() > 1 {
                    found.push(path);
                }
                at = after;
            }
            TokenTree::Punct(_) | TokenTree::Literal(_) => at += 1,
        }
    }
    found
}

/// The paths in the string literals of an attribute, shown at the literal.
pub(super) fn string_paths(tokens: &TokenStream) -> Vec<RawPath> {
    let mut found = Vec::new();
    for tree in tokens.clone() {
        match tree {
            TokenTree::Group(group) => found.extend(string_paths(&group.stream())),
            TokenTree::Literal(literal) => {
                let span = literal.span();
                let text = syn::parse2::<syn::LitStr>(TokenTree::Literal(literal).into());
                if let Ok(path) = text.and_then(|text| text.parse::<syn::Path>()) {
                    found.push(RawPath { span, ..RawPath::of(&path) });
                }
            }
            TokenTree::Ident(_) | TokenTree::Punct(_) => {}
        }
    }
    found
}

/// The path that starts with the identifier at `start`, and where it ends. Generic arguments
/// between segments, and the brackets of `<T>::f`, are passed over.
fn path_at(trees: &[TokenTree], start: usize) -> (RawPath, usize) {
    let global = start >= 2
        && is_colons(trees, start - 2)
        && !start
            .checked_sub(3)
            .and_then(|before| trees.get(before))
            .is_some_and(|before| matches!(before, TokenTree::Ident(_)) || is_punct(before, '>'));
    let mut path = RawPath { global, segments: Vec::new(), span: trees[start].span() };
    let mut at = start;
    while let Some(TokenTree::Ident(word)) = trees.get(at) {
        path.segments.push(text(word));
        at += 1;
        // `<T>::f`: the bracket closes directly behind the type.
        let opened = start > 0 && is_punct(&trees[start - 1], '<');
        if opened && trees.get(at).is_some_and(|tree| is_punct(tree, '>')) && is_colons(trees, at + 1) {
            at += 1;
        }
        if !is_colons(trees, at) {
            break;
        }
        let next = skip_generics(trees, at + 2);
        match trees.get(next) {
            Some(TokenTree::Ident(_)) => at = next,
            _ => break,
        }
    }
    (path, at)
}

/// Past `<…>::`, if that is what stands there.
fn skip_generics(trees: &[TokenTree], start: usize) -> usize {
    if !trees.get(start).is_some_and(|tree| is_punct(tree, '<')) {
        return start;
    }
    let mut depth = 0_usize;
    for (at, tree) in trees.iter().enumerate().skip(start) {
        if is_punct(tree, '<') {
            depth += 1;
        } else if is_punct(tree, '>') {
            depth = depth.saturating_sub(1);
        }
        if depth == 0 {
            return if is_colons(trees, at + 1) { at + 3 } else { start };
        }
    }
    start
}

fn is_punct(tree: &TokenTree, wanted: char) -> bool {
    matches!(tree, TokenTree::Punct(punct) if punct.as_char() == wanted)
}

fn is_colons(trees: &[TokenTree], at: usize) -> bool {
    trees.get(at..at + 2).is_some_and(|two| two.iter().all(|tree| is_punct(tree, ':')))
}
