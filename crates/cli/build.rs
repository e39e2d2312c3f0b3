//! Options for the linker of release builds.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let is = |name: &str, value: &str| std::env::var(name).is_ok_and(|found| found == value);
    let uses_lld = is("TARGET", "x86_64-unknown-linux-gnu") && std::env::var_os("RUSTC_LINKER").is_none();
    if is("PROFILE", "release") && uses_lld {
        // Functions with the same machine code are there once.
        println!("cargo:rustc-link-arg-bins=-Wl,--icf=all");
        // Relocations of pointers take a bit each, not 24 bytes: the start reads less.
        println!("cargo:rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    }
}
