//! Embeds the bundle of the pages, `ui/dist`: each file compressed, with its path and its type.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;

fn main() {
    let bundle = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../ui/dist");
    println!("cargo::rerun-if-changed={}", bundle.display());
    let output = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets it"));
    let mut table = String::from("&[\n");
    for (number, path) in files(&bundle).iter().enumerate() {
        let name = path.strip_prefix(&bundle).expect("it is below").to_string_lossy().into_owned();
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(&fs_err::read(path).expect("a file")).expect("it is memory");
        let compressed = output.join(format!("{number}.gz"));
        fs_err::write(&compressed, encoder.finish().expect("it is memory")).expect("written");
        let (media_type, compressed) = (media_type(&name), compressed.display().to_string());
        let _ = writeln!(
            table,
            "    Asset {{ path: {name:?}, media_type: {media_type:?}, compressed: \
                                 include_bytes!({compressed:?}) }},"
        );
    }
    table.push_str("]\n");
    fs_err::write(output.join("assets.rs"), table).expect("written");
}

/// The files of a folder and of those in it, in order of their names.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut entries: Vec<PathBuf> =
        fs_err::read_dir(folder).expect("the bundle").map(|entry| entry.expect("an entry").path()).collect();
    entries.sort();
    entries.into_iter().flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

fn media_type(name: &str) -> &'static str {
    match name.rsplit_once('.').map(|(_, ending)| ending) {
        Some("html") => "text/html; charset=utf-8",
        Some("js") => "text/javascript; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("svg") => "image/svg+xml",
        Some("json") => "application/json",
        Some("txt") => "text/plain; charset=utf-8",
        Some("woff2") => "font/woff2",
        other => panic!("a file of the bundle of an unknown type: {other:?}"),
    }
}
