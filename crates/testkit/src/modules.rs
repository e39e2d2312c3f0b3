//! The modules of a crate as parsed files, for tests over the code itself.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The path of a module below its crate, such as `["read", "queue"]`; the crate's own is empty.
pub type Module = Vec<String>;

/// The modules that are files, without tests, of the crate whose files are in `source`.
pub fn modules(source: &Path) -> BTreeMap<Module, syn::File> {
    let mut files = BTreeMap::new();
    let root = ["lib.rs", "main.rs"].map(|name| source.join(name)).into_iter().find(|path| path.exists());
    load(&root.expect("a crate has a root"), source, Vec::new(), &mut files);
    files
}

/// Reads the file `path` of `module`, and those of the modules that it declares, except for tests.
fn load(path: &Path, folder: &Path, module: Module, files: &mut BTreeMap<Module, syn::File>) {
    let text = fs_err::read_to_string(path).expect("a source file");
    let file = syn::parse_file(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    for item in &file.items {
        let syn::Item::Mod(declared) = item else { continue };
        if declared.content.is_some() || is_test(&declared.attrs) {
            continue;
        }
        let name = declared.ident.to_string();
        let below: PathBuf = folder.join(&name);
        let inner: Module = module.iter().chain([&name]).cloned().collect();
        let paths = [folder.join(format!("{name}.rs")), below.join("mod.rs")];
        let path = paths.iter().find(|path| path.exists()).unwrap_or_else(|| panic!("{name} of {}", path.display()));
        load(path, &below, inner, files);
    }
    files.insert(module, file);
}

/// Whether an item with these attributes is compiled only for tests.
pub fn is_test(attributes: &[syn::Attribute]) -> bool {
    let is_test = |one: &syn::Attribute| {
        one.path().is_ident("cfg") && one.parse_args::<syn::Ident>().is_ok_and(|what| what == "test")
    };
    attributes.iter().any(is_test)
}
