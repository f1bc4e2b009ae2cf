//! Goes through the code of a crate and holds every path against the rules.

use proc_macro2::{Span, TokenStream};
use syn::visit::{self, Visit};
use syn::{Attribute, Item};

use super::Finding;
use super::names::Names;
use super::paths::{RawPath, flatten, string_paths, token_paths, token_uses};
use super::rules::{
    CONFINED, CORE, CORE_CRATES, CORE_DENIED, CORE_LOOKUPS, CORE_TEST_CRATES, LAYERS, MAIN, PRINTERS,
};
use super::tree::{Module, is_test_only};

/// Checks every module of a crate.
pub(super) fn check(names: &Names<'_>, is_main: bool, findings: &mut Vec<Finding>) {
    for (path, module) in &names.tree.modules {
        let layer = match path.first() {
            _ if is_main => Some(MAIN),
            Some(layer) => Some(layer.as_str()),
            None => None,
        };
        if let Some(layer) = layer
            && !LAYERS.iter().any(|(name, _)| *name == layer)
        {
            if path.len() == 1 {
                let what = format!("module `{layer}` has no layer in xtask/src/layers/rules.rs");
                findings.push(Finding::of_file(&module.file, what));
            }
            continue;
        }
        let mut checker = Checker { names, path, module, layer, test: module.test, findings: &mut *findings };
        module.items.iter().for_each(|item| checker.visit_item(item));
    }
}

struct Checker<'a> {
    names: &'a Names<'a>,
    path: &'a [String],
    module: &'a Module,
    /// None for the root of the library, which only declares the modules and hands on names.
    layer: Option<&'a str>,
    /// Whether what is looked at is compiled for tests only.
    test: bool,
    findings: &'a mut Vec<Finding>,
}

impl Checker<'_> {
    fn report(&mut self, span: Span, what: String) {
        self.findings.push(Finding::new(&self.module.file, span, what));
    }

    fn in_core(&self) -> bool {
        self.layer == Some(CORE)
    }

    /// A path in code. One segment alone is an import, looked at where it was imported, or
    /// local.
    fn code_path(&mut self, path: &RawPath) {
        if path.segments.len() > 1 {
            self.path(path, false);
        }
    }

    fn path(&mut self, path: &RawPath, glob: bool) {
        for meaning in self.names.resolve(self.path, path) {
            let broken = match meaning.split_first() {
                Some((first, rest)) if first == "crate" => self.broken_inside(rest, glob),
                Some((first, rest)) if first == "eviction_agent" => self.broken_inside(rest, glob),
                Some((first, _)) => self.broken_outside(first, &meaning, glob),
                None => None,
            };
            if let Some(why) = broken {
                self.report(path.span, why);
            }
        }
    }

    /// What is wrong with seeing `path` of our own.
    fn broken_inside(&self, path: &[String], glob: bool) -> Option<String> {
        let layer = self.layer?;
        let Some(target) = path.first() else {
            // `crate` itself: by another name or whole, it is every layer.
            return Some(format!("`{layer}` must not see the whole crate"));
        };
        let Some(&(target, _)) = LAYERS.iter().find(|(name, _)| name == target) else {
            let in_root = path.len() == 1 || glob;
            return (layer == CORE && in_root)
                .then(|| format!("`{CORE}` must not see `{target}`, which the root of the crate holds"));
        };
        let allowed = LAYERS.iter().find(|(name, _)| *name == layer).map_or(&[][..], |(_, sees)| sees);
        (target != layer && !allowed.contains(&target)).then(|| format!("`{layer}` must not see `{target}`"))
    }

    /// What is wrong with seeing `path` of another crate.
    fn broken_outside(&self, name: &str, path: &[String], glob: bool) -> Option<String> {
        if let Some((_, place)) = CONFINED.iter().find(|(confined, _)| *confined == name) {
            let mut module = self.path.iter();
            let inside = place.split("::").all(|part| module.next().is_some_and(|own| own == part));
            return (!inside).then(|| format!("only `{place}` may name `{name}`"));
        }
        if !self.in_core() {
            return None;
        }
        let known = CORE_CRATES.contains(&name) || self.test && CORE_TEST_CRATES.contains(&name);
        if !known {
            return Some(format!("`{CORE}` must not name the crate `{name}`"));
        }
        if self.test && name == "std" {
            return None;
        }
        if self.may_look_up() && is_hash_map(path) {
            return None;
        }
        let (denied, why) = CORE_DENIED.iter().find(|(denied, _)| {
            let reaches = starts_with(path, denied);
            let holds = glob && denied.iter().zip(path).all(|(d, p)| d == p);
            reaches || holds
        })?;
        Some(format!("`{CORE}` must not use `{}`: {why}", denied.join("::")))
    }

    /// Whether this module may hold a `HashMap` to look into.
    fn may_look_up(&self) -> bool {
        CORE_LOOKUPS.contains(&self.path.join("::").as_str())
    }

    fn attributes(&mut self, attributes: &[Attribute], inside: impl FnOnce(&mut Self)) {
        let outer = self.test;
        self.test |= is_test_only(attributes);
        inside(self);
        self.test = outer;
    }

    fn asynchronous(&mut self, span: Span) {
        if self.in_core() {
            self.report(span, format!("`{CORE}` must not be async"));
        }
    }
}

fn is_hash_map(path: &[String]) -> bool {
    starts_with(path, &["std", "collections", "HashMap"])
}

fn starts_with(path: &[String], prefix: &[&str]) -> bool {
    path.len() >= prefix.len() && prefix.iter().zip(path).all(|(p, own)| p == own)
}

impl<'ast> Visit<'ast> for Checker<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        let attributes = attributes_of(item);
        self.attributes(attributes, |checker| visit::visit_item(checker, item));
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.attributes(&item.attrs, |checker| visit::visit_impl_item_fn(checker, item));
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        for import in flatten(item) {
            self.path(&import.path, import.glob);
        }
    }

    fn visit_item_extern_crate(&mut self, item: &'ast syn::ItemExternCrate) {
        self.path(&RawPath::of_crate(&item.ident), false);
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        // A module inside a function; the others are in the tree.
        self.report(item.mod_token.span, "a module inside a body has no layer".to_owned());
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let raw = RawPath::of(path);
        self.code_path(&raw);
        if self.may_look_up() && !names_its_hasher(path) {
            let meanings = self.names.resolve(self.path, &raw);
            if meanings.iter().any(|meaning| is_hash_map(meaning)) {
                self.report(raw.span, "a HashMap here needs a hasher that is said".to_owned());
            }
        }
        visit::visit_path(self, path);
    }

    fn visit_expr_path(&mut self, expr: &'ast syn::ExprPath) {
        // `<T>::f` is `T::f`.
        if let Some(syn::QSelf { ty, position: 0, .. }) = &expr.qself
            && let syn::Type::Path(syn::TypePath { qself: None, path, .. }) = &**ty
        {
            let mut whole = RawPath::of(path);
            whole.segments.extend(RawPath::of(&expr.path).segments);
            self.code_path(&whole);
        }
        visit::visit_expr_path(self, expr);
    }

    fn visit_attribute(&mut self, attribute: &'ast Attribute) {
        // serde takes functions by a path in a string.
        if let syn::Meta::List(list) = &attribute.meta
            && list.path.is_ident("serde")
        {
            for path in string_paths(&list.tokens) {
                self.code_path(&path);
            }
        }
        visit::visit_attribute(self, attribute);
    }

    fn visit_visibility(&mut self, _: &'ast syn::Visibility) {
        // `pub(crate)` names who may look in, not what is seen.
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        let span = call.bang_token.span;
        let name = call.path.segments.last().map(|last| last.ident.to_string());
        match name.as_deref() {
            Some("include") => {
                self.report(span, "include! carries code past the layer rule".to_owned());
            }
            Some("print" | "println" | "eprint" | "eprintln")
                if !self.test && !self.layer.is_some_and(|layer| PRINTERS.contains(&layer)) =>
            {
                self.report(span, "only the command line prints; log, or return it".to_owned());
            }
            _ => {}
        }
        visit::visit_macro(self, call);
    }

    fn visit_token_stream(&mut self, tokens: &'ast TokenStream) {
        for item in token_uses(tokens) {
            for import in flatten(&item) {
                self.path(&import.path, import.glob);
            }
        }
        for path in token_paths(tokens) {
            self.code_path(&path);
        }
    }

    fn visit_signature(&mut self, signature: &'ast syn::Signature) {
        if let Some(token) = &signature.asyncness {
            self.asynchronous(token.span);
        }
        visit::visit_signature(self, signature);
    }

    fn visit_expr_async(&mut self, expr: &'ast syn::ExprAsync) {
        self.asynchronous(expr.async_token.span);
        visit::visit_expr_async(self, expr);
    }
}

/// `HashMap<K, V, S>`.
fn names_its_hasher(path: &syn::Path) -> bool {
    path.segments.iter().any(|segment| match &segment.arguments {
        syn::PathArguments::AngleBracketed(arguments) => arguments.args.len() == 3,
        _ => false,
    })
}

fn attributes_of(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::ExternCrate(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::ForeignMod(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Union(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}
