//! Damaged bytes for the decoders of this crate; see `tests/fuzz/mutate.rs`. Each has its target beside it.

use std::path::Path;

#[path = "../tests/fuzz/mutate.rs"]
#[expect(clippy::print_stdout, reason = "says how much it has tried")]
mod mutate;

/// Runs `target` on the corpus `name`, on `seeds`, and on what becomes of them.
pub(crate) fn fuzz(name: &str, seeds: Vec<Vec<u8>>, target: impl Fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/corpus");
    mutate::fuzz(&folder.join(name), seeds, target);
}
