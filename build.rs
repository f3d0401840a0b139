//! Lets this package's examples, tests and benches find a UCX that is not in the system's folders
//! when they run. `ucx-sys` finds UCX; the version is asked at run time, so nothing is configured.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=UCX_ROOT");
    let elsewhere = std::env::var_os("UCX_ROOT").is_some();
    if let (true, Ok(libraries)) = (elsewhere, std::env::var("DEP_UCP_LIBDIR")) {
        println!("cargo::rustc-link-arg=-Wl,-rpath,{libraries}");
    }
}
