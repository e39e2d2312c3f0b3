//! Checks the imports between the files of each crate: no cycle of more than three files, and the engine's modules in
//! layers.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use cargo_metadata::MetadataCommand;
use millstream_testkit::{Module, is_test, modules};
use syn::visit::{self, Visit};

/// The most files that may import each other in a cycle.
const LARGEST_CIRCLE: usize = 3;

/// The parts of the engine, each of which may import those of the layers above it in this list only.
const ENGINE: &[&[&str]] = &[
    &[
        "failure",
        "job_text",
        "member",
        "memory",
        "node",
        "overlap",
        "planner_names",
        "registry",
        "reword",
        "routing",
        "stages",
    ],
    &["explain", "mail", "runtime", "surroundings", "verdict"],
    &["fault", "machine", "rejects", "report"],
    &["checks", "monitor"],
    &["engine", "load", "options", "read", "scratch", "sql"],
    &["context", "job_plan", "plan"],
    &["chunks", "prepare"],
    &["fingerprint", "first_rows", "urls"],
    &["guess", "hooks", "require", "resume"],
    &["parse", "sequences"],
    &["commands", "run", "stream"],
    &["forget", "query", "replay", "testing"],
];

/// The modules of one crate that are files, and what each imports of the others.
#[derive(Default)]
struct Imports(BTreeMap<Module, BTreeSet<Module>>);

impl Imports {
    /// Those of the crate whose files are in `source`, without tests.
    fn read(source: &Path) -> Self {
        let files = modules(source);
        let known: BTreeSet<Module> = files.keys().cloned().collect();
        let imports = files.iter().map(|(module, file)| {
            let mut paths = Paths { module: module.clone(), known: &known, found: BTreeSet::new() };
            // The root names the parts of its crate, such as all of its components: that is no use of them.
            if !module.is_empty() {
                paths.visit_file(file);
            }
            paths.found.remove(module);
            (module.clone(), paths.found)
        });
        Imports(imports.collect())
    }

    /// What `module` imports, directly or not.
    fn all_of<'a>(&'a self, module: &'a Module) -> BTreeSet<&'a Module> {
        let (mut all, mut left) = (BTreeSet::new(), vec![module]);
        while let Some(next) = left.pop() {
            left.extend(self.0.get(next).into_iter().flatten().filter(|import| all.insert(*import)));
        }
        all
    }

    /// The largest set of modules each of which imports all others, directly or not.
    fn largest_circle(&self) -> Vec<String> {
        let all: BTreeMap<&Module, BTreeSet<&Module>> =
            self.0.keys().map(|module| (module, self.all_of(module))).collect();
        let circle = |module: &Module| -> Vec<String> {
            all[module].iter().filter(|other| all[**other].contains(module)).map(|other| other.join("::")).collect()
        };
        self.0.keys().map(circle).max_by_key(Vec::len).unwrap_or_default()
    }
}

/// Gathers the modules that the paths of a file lead to.
struct Paths<'a> {
    /// Where the paths stand.
    module: Module,
    known: &'a BTreeSet<Module>,
    found: BTreeSet<Module>,
}

impl Paths<'_> {
    fn see(&mut self, segments: &[String]) {
        let Some(first) = segments.first() else { return };
        let (mut from, mut rest) = match first.as_str() {
            "crate" => (Vec::new(), &segments[1..]),
            "self" => (self.module.clone(), &segments[1..]),
            "super" => (self.module.clone(), segments),
            name if self.known.contains(&[&self.module[..], &[name.to_owned()]].concat()) => {
                (self.module.clone(), segments)
            }
            _ => return,
        };
        while let Some(("super", behind)) = rest.split_first().map(|(first, behind)| (first.as_str(), behind)) {
            from.pop();
            rest = behind;
        }
        from.extend(rest.iter().cloned());
        // What stands behind the module is a name in it.
        while !self.known.contains(&from) {
            from.pop();
        }
        self.found.insert(from);
    }

    fn see_tree(&mut self, tree: &syn::UseTree, before: &[String]) {
        let with = |name: &syn::Ident| [before, &[name.to_string()]].concat();
        match tree {
            syn::UseTree::Path(path) => self.see_tree(&path.tree, &with(&path.ident)),
            syn::UseTree::Name(name) => self.see(&with(&name.ident)),
            syn::UseTree::Rename(rename) => self.see(&with(&rename.ident)),
            syn::UseTree::Glob(_) => self.see(before),
            syn::UseTree::Group(group) => group.items.iter().for_each(|tree| self.see_tree(tree, before)),
        }
    }
}

impl<'ast> Visit<'ast> for Paths<'_> {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if is_test(&item.attrs) {
            return;
        }
        self.module.push(item.ident.to_string());
        visit::visit_item_mod(self, item);
        self.module.pop();
    }

    /// A re-export is no use of the module.
    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        if matches!(item.vis, syn::Visibility::Inherited) && !is_test(&item.attrs) {
            self.see_tree(&item.tree, &[]);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let segments: Vec<String> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        if segments.len() > 1 {
            self.see(&segments);
        }
        visit::visit_path(self, path);
    }
}

#[test]
fn files_import_each_other_in_one_direction() {
    let metadata = MetadataCommand::new().no_deps().exec().expect("cargo metadata");
    let mut seen = 0;
    for package in metadata.workspace_packages() {
        let Some(source) = package.manifest_path.parent().map(|folder| folder.join("src")) else { continue };
        let is_crate = ["lib.rs", "main.rs"].iter().any(|name| source.join(name).exists());
        if !is_crate {
            continue;
        }
        seen += 1;
        let circle = Imports::read(source.as_std_path()).largest_circle();
        assert!(circle.len() <= LARGEST_CIRCLE, "{}: these import each other: {}", package.name, circle.join(", "));
    }
    assert!(seen > 8, "{seen} crates");
}

#[test]
fn the_engine_is_built_in_layers() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../engine/src");
    let imports = Imports::read(&source);
    let layer = |part: &str| ENGINE.iter().position(|layer| layer.contains(&part));
    for (module, others) in &imports.0 {
        let Some(part) = module.first() else { continue };
        let own = layer(part).unwrap_or_else(|| panic!("`{part}` has no layer: give it one in this test"));
        for other in others.iter().filter_map(|other| other.first()).filter(|other| *other != part) {
            let below = layer(other).is_some_and(|other| other < own);
            assert!(
                below,
                "{} imports `{other}`, which is not in a layer above its own in the list",
                module.join("::")
            );
        }
    }
}
