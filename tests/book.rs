//! The book in docs/ is whole: what it links to is there, all programs have a page, and the Rust of
//! all pages is compiled.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The files of a folder and of those in it that end so.
fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path, extension));
        } else if path.extension().is_some_and(|found| found == extension) {
            found.push(path);
        }
    }
    found
}

/// Where a page's links to other pages lead, from the page's folder.
fn links(text: &str) -> impl Iterator<Item = &str> {
    let targets = text.split("](").skip(1);
    targets
        .filter_map(|rest| rest.split([')', '#']).next())
        .filter(|link| link.ends_with(".md"))
}

#[test]
fn links_lead_to_pages() {
    let docs = root().join("docs");
    let mut seen = 0;
    for page in files(&docs, "md") {
        for link in links(&read(&page)) {
            let target = page.parent().unwrap().join(link);
            assert!(target.is_file(), "{}: no {link}", page.display());
            seen += 1;
        }
    }
    assert!(seen > 50, "{seen} links");
}

#[test]
fn every_program_has_a_page() {
    let docs = root().join("docs");
    let summary = read(&docs.join("SUMMARY.md"));
    let overview = read(&docs.join("programs/overview.md"));
    let mut seen = 0;
    for entry in fs::read_dir(root().join("examples")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "rs") {
            continue;
        }
        let page = format!("{}.md", path.file_stem().unwrap().display());
        let listed = |list: &str, link: &str| links(list).any(|found| found == link);
        assert!(listed(&summary, &format!("programs/{page}")), "{page}");
        assert!(listed(&overview, &page), "{page}");
        seen += 1;
    }
    assert!(seen > 10, "{seen} programs");
}

#[test]
fn all_rust_is_compiled() {
    let docs = root().join("docs");
    let compiled = read(&root().join("src/book.rs"));
    let compiled: BTreeSet<&str> = compiled
        .lines()
        .filter_map(|line| line.split('"').nth(1))
        .filter(|file| file.ends_with(".md"))
        .collect();
    let with_rust: BTreeSet<String> = files(&docs, "md")
        .into_iter()
        .filter(|page| read(page).contains("```rust"))
        .map(|page| page.strip_prefix(&docs).unwrap().display().to_string())
        .collect();
    let with_rust: BTreeSet<&str> = with_rust.iter().map(String::as_str).collect();
    assert_eq!(with_rust, compiled);
}
