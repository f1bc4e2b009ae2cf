//! The modules of a crate, found as the compiler finds them: from the root, along `mod`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use proc_macro2::{Span, TokenTree};
use syn::visit::{self, Visit};
use syn::{Attribute, Item, ItemMod, Meta};

use super::Finding;
use super::paths::{RawPath, flatten, token_uses};

/// One crate.
#[derive(Default)]
pub(super) struct Tree {
    /// By path from the root: `["core", "rank"]`; the root is `[]`.
    pub(super) modules: BTreeMap<Vec<String>, Module>,
    /// Every file that is part of a module.
    pub(super) files: BTreeSet<PathBuf>,
}

/// One module.
pub(super) struct Module {
    /// The file it stands in, from the root of the workspace.
    pub(super) file: PathBuf,
    /// What it holds, submodules excepted.
    pub(super) items: Vec<Item>,
    /// Whether it is compiled for tests only.
    pub(super) test: bool,
    /// What `use`, `extern crate` and `type` call by another name here, in any scope of the
    /// module: a name may stand for several things.
    pub(super) aliases: BTreeMap<String, Vec<RawPath>>,
    /// What is imported whole.
    pub(super) globs: Vec<RawPath>,
    /// The modules declared here.
    pub(super) children: BTreeSet<String>,
}

/// Reads files; tests hand in invented ones.
pub(super) type Read<'a> = &'a dyn Fn(&Path) -> Option<String>;

impl Tree {
    /// Reads the crate whose root file is `root`.
    pub(super) fn read(root: &Path, read: Read<'_>, findings: &mut Vec<Finding>) -> Result<Self> {
        let mut tree = Self::default();
        let folder = root.parent().unwrap_or(Path::new("")).to_owned();
        let items = tree.parse(root, read)?;
        let place = Place { file: root, folder: &folder, path: vec![], test: false };
        tree.add(place, items, read, findings)?;
        Ok(tree)
    }

    fn parse(&mut self, file: &Path, read: Read<'_>) -> Result<Vec<Item>> {
        let text = read(file).with_context(|| format!("read {}", file.display()))?;
        self.files.insert(file.to_owned());
        let parsed = syn::parse_file(&text).map_err(|error| {
            let at = error.span().start();
            anyhow::anyhow!("{}:{}:{}: {error}", file.display(), at.line, at.column + 1)
        })?;
        Ok(parsed.items)
    }

    fn add(
        &mut self,
        place: Place<'_>,
        items: Vec<Item>,
        read: Read<'_>,
        findings: &mut Vec<Finding>,
    ) -> Result<()> {
        let mut own = Vec::new();
        let mut children = BTreeSet::new();
        for item in items {
            let Item::Mod(module) = item else {
                own.push(item);
                continue;
            };
            children.insert(module.ident.to_string());
            self.add_child(&place, module, read, findings)?;
        }
        let mut names = Names::default();
        own.iter().for_each(|item| names.visit_item(item));
        let module = Module {
            file: place.file.to_owned(),
            items: own,
            test: place.test,
            aliases: names.aliases,
            globs: names.globs,
            children,
        };
        self.modules.insert(place.path, module);
        Ok(())
    }

    fn add_child(
        &mut self,
        parent: &Place<'_>,
        module: ItemMod,
        read: Read<'_>,
        findings: &mut Vec<Finding>,
    ) -> Result<()> {
        let name = module.ident.to_string();
        let at = |span, what: &str| Finding::new(parent.file, span, what);
        for attribute in &module.attrs {
            if is_path(attribute) {
                findings.push(at(span_of(attribute), "#[path] puts a module where its layer cannot be seen"));
                return Ok(());
            }
            if attribute.path().is_ident("macro_use") {
                findings.push(at(
                    span_of(attribute),
                    "#[macro_use] carries names across layers; import the macro by its path",
                ));
            }
        }
        let mut path = parent.path.clone();
        path.push(name.clone());
        let test = parent.test || is_test_only(&module.attrs);
        let folder = parent.folder.join(&name);
        if let Some((_, items)) = module.content {
            let place = Place { file: parent.file, folder: &folder, path, test };
            return self.add(place, items, read, findings);
        }
        let candidates = [parent.folder.join(format!("{name}.rs")), folder.join("mod.rs")];
        let Some(file) = candidates.iter().find(|file| read(file).is_some()) else {
            findings.push(at(module.ident.span(), "the file of this module does not exist"));
            return Ok(());
        };
        let items = self.parse(file, read)?;
        self.add(Place { file, folder: &folder, path, test }, items, read, findings)
    }
}

/// Where a module stands.
struct Place<'a> {
    file: &'a Path,
    /// Where the files of its submodules are.
    folder: &'a Path,
    path: Vec<String>,
    test: bool,
}

fn span_of(attribute: &Attribute) -> Span {
    attribute.pound_token.span
}

/// `#[path = "…"]`, also under a condition.
fn is_path(attribute: &Attribute) -> bool {
    attribute.path().is_ident("path")
        || matches!(&attribute.meta, Meta::List(list) if list.path.is_ident("cfg_attr")
            && list.tokens.clone().into_iter().any(|token| token.to_string() == "path"))
}

/// Whether these attributes compile something for tests only.
pub(super) fn is_test_only(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        Meta::Path(path) => path.is_ident("test"),
        Meta::List(list) if list.path.is_ident("cfg") => {
            let conditions: Vec<TokenTree> = list.tokens.clone().into_iter().collect();
            match conditions.as_slice() {
                [TokenTree::Ident(only)] => only == "test",
                [TokenTree::Ident(all), TokenTree::Group(group)] if all == "all" => {
                    let conditions: Vec<TokenTree> = group.stream().into_iter().collect();
                    let mut parts = conditions.split(|token| token.to_string() == ",");
                    parts.any(|part| matches!(part, [TokenTree::Ident(only)] if only == "test"))
                }
                _ => false,
            }
        }
        _ => false,
    })
}

/// Collects what a module calls by another name.
#[derive(Default)]
struct Names {
    aliases: BTreeMap<String, Vec<RawPath>>,
    globs: Vec<RawPath>,
}

impl Names {
    fn add_use(&mut self, item: &syn::ItemUse) {
        for import in flatten(item) {
            if import.glob {
                self.globs.push(import.path);
            } else if let Some(name) = import.name {
                self.aliases.entry(name).or_default().push(import.path);
            }
        }
    }
}

impl<'ast> Visit<'ast> for Names {
    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        self.add_use(item);
    }

    fn visit_item_extern_crate(&mut self, item: &'ast syn::ItemExternCrate) {
        if let Some((_, name)) = &item.rename {
            let path = RawPath::of_crate(&item.ident);
            self.aliases.entry(name.to_string()).or_default().push(path);
        }
    }

    fn visit_item_type(&mut self, item: &'ast syn::ItemType) {
        if let syn::Type::Path(syn::TypePath { qself: None, path, .. }) = &*item.ty {
            let path = RawPath::of(path);
            self.aliases.entry(item.ident.to_string()).or_default().push(path);
        }
        visit::visit_item_type(self, item);
    }

    fn visit_token_stream(&mut self, tokens: &'ast proc_macro2::TokenStream) {
        for item in token_uses(tokens) {
            self.add_use(&item);
        }
    }
}
