//! Finds the system's UCX, links `libucp` and `libucs` of the same place, and tells dependents
//! (`DEP_UCP_VERSION`, `DEP_UCP_LIBDIR`, `DEP_UCP_INCLUDE`) which one it was. Generates nothing.
//!
//! In order: `UCX_ROOT`, pkg-config, then the usual prefixes, for machines without pkg-config. Headers are
//! not needed; where they are missing too, so may be the version, and the check at run time stands alone.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

/// The oldest UCX whose structures `src/types.rs` describes.
const MINIMUM: (u32, u32) = (1, 12);

/// Where UCX is and what it is. Unknown parts are empty.
struct Ucx {
    version: String,
    libdir: PathBuf,
    include: PathBuf,
    /// False if the linker looks into `libdir` by itself.
    search: bool,
    /// False if the unversioned `libucp.so` of a development package is missing.
    development: bool,
}

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=UCX_ROOT");
    println!("cargo::rerun-if-env-changed=CONDA_PREFIX");
    println!("cargo::rerun-if-env-changed=DOCS_RS");
    if env::var_os("DOCS_RS").is_some() {
        // Only documentation is made there: nothing is linked, and there is no UCX.
        println!("cargo::metadata=version={}.{}.0", MINIMUM.0, MINIMUM.1);
        println!("cargo::rustc-env=INCLUDE_OF_UCX=");
        return;
    }
    match find().and_then(|ucx| new_enough(&ucx).map(|()| ucx)) {
        Ok(ucx) => link(&ucx),
        Err(message) => {
            // One directive is one line; cargo shows them last and in this order.
            for line in message.lines() {
                println!("cargo::error={line}");
            }
        }
    }
}

fn find() -> Result<Ucx, String> {
    if let Some(root) = env::var_os("UCX_ROOT") {
        let root = PathBuf::from(root);
        return in_prefix(&root).ok_or_else(|| {
            format!(
                "UCX_ROOT is {root}, but libucp.so and libucs.so are not both in {root}/lib or {root}/lib64",
                root = root.display()
            )
        });
    }
    let from_pkg_config = match by_pkg_config() {
        Ok(ucx) => return Ok(ucx),
        Err(why) => why,
    };
    usual_places().ok_or_else(|| missing(&from_pkg_config))
}

/// The libraries under `prefix`, if both are there.
fn in_prefix(prefix: &Path) -> Option<Ucx> {
    let mut libdirs = vec![prefix.join("lib"), prefix.join("lib64")];
    if let Ok(arch) = env::var("CARGO_CFG_TARGET_ARCH") {
        libdirs.push(prefix.join(format!("lib/{arch}-linux-gnu")));
    }
    let has = |libdir: &Path, name: &str| libdir.join(name).exists();
    let (libdir, development) = libdirs.into_iter().find_map(|libdir| {
        if has(&libdir, "libucp.so") && has(&libdir, "libucs.so") {
            Some((libdir, true))
        } else if has(&libdir, "libucp.so.0") && has(&libdir, "libucs.so.0") {
            Some((libdir, false))
        } else {
            None
        }
    })?;
    let include = prefix.join("include");
    let version = version_in_pc(&libdir.join("pkgconfig/ucx.pc"))
        .or_else(|| version_in_header(&include.join("ucp/api/ucp_version.h")))
        .unwrap_or_default();
    Some(Ucx {
        version,
        libdir,
        include,
        search: prefix != Path::new("/usr"),
        development,
    })
}

fn by_pkg_config() -> Result<Ucx, String> {
    let library = pkg_config::Config::new()
        .cargo_metadata(false)
        .probe("ucx")
        .map_err(|error| match error {
            pkg_config::Error::Command { .. } => "pkg-config is not installed".to_owned(),
            pkg_config::Error::CrossCompilation => {
                "pkg-config is not set up for cross-compilation".to_owned()
            }
            _ => "pkg-config knows no ucx".to_owned(),
        })?;
    let variable =
        |name| pkg_config::get_variable("ucx", name).map_or_else(|_| PathBuf::new(), PathBuf::from);
    let mut libdir = variable("libdir");
    if let (true, Some(path)) = (libdir.as_os_str().is_empty(), library.link_paths.first()) {
        libdir.clone_from(path);
    }
    Ok(Ucx {
        version: library.version,
        search: !library.link_paths.is_empty(),
        libdir,
        include: variable("includedir"),
        development: true,
    })
}

fn usual_places() -> Option<Ucx> {
    if env::var_os("HOST") != env::var_os("TARGET") {
        return None; // another machine's libraries
    }
    let conda = env::var_os("CONDA_PREFIX").map(PathBuf::from);
    let system = ["/usr", "/usr/local"].map(PathBuf::from);
    conda
        .into_iter()
        .chain(system)
        .find_map(|prefix| in_prefix(&prefix))
}

fn version_in_pc(file: &Path) -> Option<String> {
    let text = fs::read_to_string(file).ok()?;
    let version = text
        .lines()
        .find_map(|line| line.strip_prefix("Version:"))?;
    Some(version.trim().to_owned())
}

/// The header knows the interface's version, which is major and minor only.
fn version_in_header(file: &Path) -> Option<String> {
    let text = fs::read_to_string(file).ok()?;
    let number = |name: &str| {
        text.lines().find_map(|line| {
            let mut words = line.split_whitespace();
            (words.next() == Some("#define") && words.next() == Some(name))
                .then(|| words.next().map(str::to_owned))
                .flatten()
        })
    };
    Some(format!(
        "{}.{}.0",
        number("UCP_API_MAJOR")?,
        number("UCP_API_MINOR")?
    ))
}

fn new_enough(ucx: &Ucx) -> Result<(), String> {
    let mut numbers = ucx
        .version
        .split('.')
        .map_while(|part| part.parse::<u32>().ok());
    let (Some(major), Some(minor)) = (numbers.next(), numbers.next()) else {
        return Ok(()); // unknown here: ucx_sys::check() asks the library itself
    };
    if (major, minor) >= MINIMUM {
        return Ok(());
    }
    Err(format!(
        "UCX {found} in {libdir} is too old: version {}.{} or later is needed\n\
         install a newer one (Spack: spack install ucx; conda: conda install -c conda-forge ucx) \
         and set UCX_ROOT to its prefix",
        MINIMUM.0,
        MINIMUM.1,
        found = ucx.version,
        libdir = ucx.libdir.display(),
    ))
}

fn missing(from_pkg_config: &str) -> String {
    format!(
        "UCX {}.{} or later was not found: {from_pkg_config}, nor is it in /usr or /usr/local\n\
         install it:\n  \
         Debian, Ubuntu   apt-get install libucx-dev\n  \
         Fedora, RHEL     dnf install ucx-devel\n  \
         Arch (AUR)       openucx\n  \
         Spack            spack install ucx && spack load ucx\n  \
         conda            conda install -c conda-forge ucx\n\
         or set UCX_ROOT to the prefix that holds lib/libucp.so, or PKG_CONFIG_PATH to the folder of ucx.pc",
        MINIMUM.0, MINIMUM.1
    )
}

fn link(ucx: &Ucx) {
    let libdir = ucx.libdir.display();
    if ucx.search {
        println!("cargo::rustc-link-search=native={libdir}");
        // This package's tests find the libraries without LD_LIBRARY_PATH, which still goes first.
        println!("cargo::rustc-link-arg=-Wl,--enable-new-dtags,-rpath,{libdir}");
    }
    for name in ["ucp", "ucs"] {
        if ucx.development {
            println!("cargo::rustc-link-lib=dylib={name}");
        } else {
            println!("cargo::rustc-link-lib=dylib:+verbatim=lib{name}.so.0");
        }
    }
    let libucp = ucx.libdir.join(if ucx.development {
        "libucp.so"
    } else {
        "libucp.so.0"
    });
    if libucp.exists() {
        // An exchanged library is looked at again.
        println!("cargo::rerun-if-changed={}", libucp.display());
    }
    // tests/abi.rs compares with the headers of the same place.
    println!("cargo::rustc-env=INCLUDE_OF_UCX={}", ucx.include.display());
    println!("cargo::metadata=version={}", ucx.version);
    println!("cargo::metadata=libdir={libdir}");
    println!("cargo::metadata=include={}", ucx.include.display());
}
