//! The public surface of the library, as it is recorded in `surface.txt`: a change of it is one that is meant.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use millstream_testkit::{Module, is_test, modules};
use quote::ToTokens;

/// Set to write the file anew.
const UPDATE: &str = "UPDATE_SURFACE";

/// The crates of the workspace that the library hands on, as far as they are known, by the names that paths have.
struct Crates(BTreeMap<String, BTreeMap<Module, syn::File>>);

/// Where an item is defined.
#[derive(Clone)]
struct Defined<'a> {
    krate: &'a str,
    module: &'a Module,
    item: &'a syn::Item,
}

impl Crates {
    fn read() -> Self {
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let of = |name: &str| {
            let folder = name.strip_prefix("millstream_").unwrap_or(name);
            (name.to_owned(), modules(&crates.join(folder).join("src")))
        };
        let names = [
            "millstream",
            "millstream_core",
            "millstream_cluster",
            "millstream_job",
            "millstream_engine",
            "millstream_sequencer",
            "millstream_state",
        ];
        Crates(names.map(of).into())
    }

    /// The definition of `name`, as the module sees it or hands it on; `None` where it is another crate's.
    fn find<'a>(&'a self, krate: &'a str, module: &[String], name: &str) -> Option<Defined<'a>> {
        let (module, file) = self.0.get(krate)?.get_key_value(module)?;
        for item in &file.items {
            if name_of(item).as_deref() == Some(name) {
                return Some(Defined { krate: self.0.get_key_value(krate)?.0, module, item });
            }
            let syn::Item::Use(used) = item else { continue };
            for (path, leaf) in leaves(&used.tree) {
                if leaf == name {
                    if path[0] == "datafusion" {
                        return Some(Defined { krate: self.0.get_key_value(krate)?.0, module, item });
                    }
                    let (krate, module, name) = self.resolve(krate, module, &path)?;
                    return self.find(krate, &module, &name);
                }
            }
        }
        None
    }

    /// The crate, module and name that the path of a `use` means in `module`.
    fn resolve<'a>(&'a self, krate: &'a str, module: &[String], path: &[String]) -> Option<(&'a str, Module, String)> {
        let (name, before) = path.split_last()?;
        let (krate, mut found, rest) = match before.first().map(String::as_str) {
            Some("crate") => (krate, Vec::new(), &before[1..]),
            Some("self") => (krate, module.to_vec(), &before[1..]),
            Some("super") => (krate, module[..module.len() - 1].to_vec(), &before[1..]),
            Some(other) if self.0.contains_key(other) => {
                (self.0.get_key_value(other)?.0.as_str(), Vec::new(), &before[1..])
            }
            _ => (krate, module.to_vec(), before),
        };
        found.extend(rest.iter().cloned());
        Some((krate, found, name.clone()))
    }

    /// Everything public of the library, a line each.
    fn surface(&self) -> BTreeSet<String> {
        let mut lines = BTreeSet::new();
        self.module("millstream", &[], "millstream", &mut lines);
        lines
    }

    fn module(&self, krate: &str, module: &[String], shown: &str, lines: &mut BTreeSet<String>) {
        let file = &self.0[krate][module];
        lines.insert(format!("mod {shown}"));
        self.items(krate, module, &file.items, shown, lines);
    }

    fn items(&self, krate: &str, module: &[String], items: &[syn::Item], shown: &str, lines: &mut BTreeSet<String>) {
        for item in items {
            match item {
                syn::Item::Mod(inner) if is_public(&inner.vis) => {
                    let (path, shown) =
                        ([module, &[inner.ident.to_string()]].concat(), format!("{shown}::{}", inner.ident));
                    match &inner.content {
                        Some((_, items)) => {
                            lines.insert(format!("mod {shown}"));
                            self.items(krate, module, items, &shown, lines);
                        }
                        None => self.module(krate, &path, &shown, lines),
                    }
                }
                syn::Item::Use(used) if is_public(&used.vis) => {
                    for (path, leaf) in leaves(&used.tree) {
                        let (krate, module, name) = self.resolve(krate, module, &path).unwrap();
                        let shown = format!("{shown}::{leaf}");
                        match self.find(krate, &module, &name) {
                            Some(defined) => self.item(&defined, &shown, lines),
                            None => panic!("where is {} defined, which {shown} hands on?", path.join("::")),
                        }
                    }
                }
                _ => {}
            }
        }
    }

    fn item(&self, defined: &Defined<'_>, shown: &str, lines: &mut BTreeSet<String>) {
        let Defined { krate, module, item } = defined;
        match item {
            syn::Item::Struct(one) => {
                lines.insert(format!("struct {shown}{}", text(&one.generics)));
                let public = one.fields.iter().enumerate().filter(|(_, field)| is_public(&field.vis));
                for (index, field) in public {
                    let name = field.ident.as_ref().map_or(index.to_string(), ToString::to_string);
                    lines.insert(format!("{shown}::{name}: {}", text(&field.ty)));
                }
                self.methods(krate, module, &one.ident.to_string(), shown, lines);
            }
            syn::Item::Enum(one) => {
                lines.insert(format!("enum {shown}{}", text(&one.generics)));
                for variant in &one.variants {
                    let fields = text(&variant.fields);
                    lines.insert(format!("{shown}::{}{fields}", variant.ident));
                }
                self.methods(krate, module, &one.ident.to_string(), shown, lines);
            }
            syn::Item::Trait(one) => {
                lines.insert(format!("trait {shown}{}: {}", text(&one.generics), text(&one.supertraits)));
                for item in &one.items {
                    let line = match item {
                        syn::TraitItem::Fn(one) => {
                            let default = if one.default.is_some() { " { … }" } else { "" };
                            format!("{}{default}", text(&one.sig))
                        }
                        other => text(&without_docs(other)),
                    };
                    lines.insert(format!("{shown}::{line}"));
                }
            }
            syn::Item::Fn(one) => {
                lines.insert(format!("{shown}: {}", text(&one.sig)));
            }
            syn::Item::Const(one) => {
                lines.insert(format!("{shown}: {}", text(&one.ty)));
            }
            syn::Item::Type(one) => {
                lines.insert(format!("type {shown}{} = {}", text(&one.generics), text(&one.ty)));
            }
            syn::Item::Use(used) => {
                let name = shown.rsplit("::").next().unwrap();
                let (path, _) = leaves(&used.tree).into_iter().find(|(_, leaf)| leaf == name).unwrap();
                lines.insert(format!("use {shown} = {}", path.join("::")));
            }
            other => panic!("{shown} is of a kind that this test does not know: {}", text(other)),
        }
    }

    /// The public methods of `name`, wherever its crate has them.
    fn methods(&self, krate: &str, home: &Module, name: &str, shown: &str, lines: &mut BTreeSet<String>) {
        for (module, file) in &self.0[krate] {
            let hands_on = |used: &syn::ItemUse| leaves(&used.tree).iter().any(|(_, leaf)| leaf == name);
            let sees = |item: &syn::Item| matches!(item, syn::Item::Use(used) if hands_on(used));
            if module != home && !file.items.iter().any(sees) {
                continue;
            }
            for item in &file.items {
                let syn::Item::Impl(block) = item else { continue };
                let of = match block.self_ty.as_ref() {
                    syn::Type::Path(path) => path.path.segments.last().map(|last| last.ident.to_string()),
                    _ => None,
                };
                if block.trait_.is_some() || of.as_deref() != Some(name) || is_test(&block.attrs) {
                    continue;
                }
                for item in &block.items {
                    match item {
                        syn::ImplItem::Fn(method) if is_public(&method.vis) => {
                            lines.insert(format!("{shown}::{}", text(&method.sig)));
                        }
                        syn::ImplItem::Const(constant) if is_public(&constant.vis) => {
                            lines.insert(format!("{shown}::{}: {}", constant.ident, text(&constant.ty)));
                        }
                        _ => {}
                    }
                }
            }
        }
    }
}

fn is_public(visibility: &syn::Visibility) -> bool {
    matches!(visibility, syn::Visibility::Public(_))
}

fn name_of(item: &syn::Item) -> Option<String> {
    Some(match item {
        syn::Item::Struct(one) => one.ident.to_string(),
        syn::Item::Enum(one) => one.ident.to_string(),
        syn::Item::Trait(one) => one.ident.to_string(),
        syn::Item::Fn(one) => one.sig.ident.to_string(),
        syn::Item::Type(one) => one.ident.to_string(),
        syn::Item::Const(one) => one.ident.to_string(),
        _ => return None,
    })
}

/// The paths of a `use`, and the names that it gives them.
fn leaves(tree: &syn::UseTree) -> Vec<(Vec<String>, String)> {
    match tree {
        syn::UseTree::Path(path) => {
            let mut all = leaves(&path.tree);
            all.iter_mut().for_each(|(one, _)| one.insert(0, path.ident.to_string()));
            all
        }
        syn::UseTree::Name(name) => vec![(vec![name.ident.to_string()], name.ident.to_string())],
        syn::UseTree::Rename(rename) => vec![(vec![rename.ident.to_string()], rename.rename.to_string())],
        syn::UseTree::Group(group) => group.items.iter().flat_map(leaves).collect(),
        syn::UseTree::Glob(_) => Vec::new(),
    }
}

fn without_docs(item: &syn::TraitItem) -> syn::TraitItem {
    let mut item = item.clone();
    match &mut item {
        syn::TraitItem::Const(one) => one.attrs.clear(),
        syn::TraitItem::Type(one) => one.attrs.clear(),
        _ => {}
    }
    item
}

/// Code in one line, as one would write it.
fn text(code: &impl ToTokens) -> String {
    let mut text = String::new();
    for part in code.to_token_stream().to_string().split_whitespace() {
        let joins_left = [",", ";", ":", "::", ">", ")", "]", "?", "."].iter().any(|sign| part.starts_with(sign));
        let joins_right = ["::", "<", "(", "[", "&", "#", "'", "!"].iter().any(|sign| text.ends_with(sign));
        let opens = part.starts_with('<') || (part.starts_with('(') && !text.ends_with([',', '>', ':', '=']));
        if !text.is_empty() && !joins_left && !joins_right && !opens {
            text.push(' ');
        }
        text.push_str(part);
    }
    text
}

#[test]
fn the_public_surface_is_the_recorded_one() {
    let recorded: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("surface.txt");
    let surface: String = Crates::read().surface().into_iter().map(|line| line + "\n").collect();
    assert!(surface.contains("struct millstream::Engine\n") && surface.lines().count() > 300, "{surface}");
    if std::env::var_os(UPDATE).is_some() {
        fs_err::write(&recorded, &surface).unwrap();
    }
    let before = fs_err::read_to_string(&recorded).unwrap_or_default();
    let [before, now] = [&before, &surface].map(|text| text.lines().collect::<BTreeSet<_>>());
    let (gone, new): (Vec<_>, Vec<_>) = (before.difference(&now).collect(), now.difference(&before).collect());
    assert!(
        gone.is_empty() && new.is_empty(),
        "the public surface has changed; if that is meant: {UPDATE}=1 cargo test -p millstream --test it surface\n\
         gone: {gone:#?}\nnew: {new:#?}"
    );
}
