//! Damaged texts for what is read before a job's ranks know each other; see `tests/fuzz/mutate.rs`.

use super::pmi1;
use super::store::Found;
use std::path::{Path, PathBuf};

#[path = "../../../tests/fuzz/mutate.rs"]
#[expect(clippy::print_stdout, reason = "says how much it has tried")]
mod mutate;
use mutate::fuzz;

fn corpus(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/corpus");
    folder.join(name)
}

#[test]
fn lines_of_process_managers() {
    fuzz(&corpus("pmi1"), Vec::new(), |bytes| {
        bytes.split(|&byte| byte == b'\n').for_each(pmi1::digest);
    });
}

#[test]
fn files_of_rank_0() {
    fuzz(&corpus("store"), Vec::new(), |bytes| {
        let Ok(text) = std::str::from_utf8(bytes) else {
            return;
        };
        if let Some(found) = Found::parse(text) {
            // What is read is written as it is read.
            let again = found.text();
            let found = Found::parse(&again).unwrap();
            assert_eq!(found.text(), again);
        }
    });
}
