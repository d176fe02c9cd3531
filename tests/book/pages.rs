//! Tests that what the pages of `docs/book` include, show and link is there, and that every measured figure has its
//! measurement in `scripts/book.py`.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the paths and the texts of all pages of the book.
fn pages() -> Vec<(PathBuf, String)> {
    let entries = fs::read_dir(root().join("docs/book/src")).unwrap().map(|entry| entry.unwrap().path());
    let pages = entries.filter(|path| path.extension().is_some_and(|extension| extension == "md"));
    pages.map(|path| (path.clone(), fs::read_to_string(path).unwrap())).collect()
}

/// Returns the texts between every `open` and the next `close` after it.
fn between<'a>(text: &'a str, open: &'a str, close: char) -> impl Iterator<Item = &'a str> {
    text.split(open).skip(1).filter_map(move |rest| rest.split_once(close)).map(|(inner, _)| inner)
}

/// Returns the anchor that mdBook gives to a heading.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().chars().filter(|letter| letter.is_alphanumeric() || " -_".contains(*letter));
    kept.collect::<String>().to_lowercase().replace(' ', "-")
}

#[test]
fn everything_that_a_page_includes_is_there() {
    let mut included = 0;
    for (page, text) in pages() {
        for include in between(&text, "{{#include ", '}') {
            let (file, part) = include.split_once(':').unwrap_or((include, ""));
            let path = page.parent().unwrap().join(file);
            let source =
                fs::read_to_string(&path).unwrap_or_else(|error| panic!("{include} in {}: {error}", page.display()));
            for mark in ["ANCHOR: ", "ANCHOR_END: "].iter().filter(|_| !part.is_empty()) {
                let ends = source.lines().any(|line| line.trim_end().ends_with(&format!("{mark}{part}")));
                assert!(ends, "{}: {include} has no {mark}{part}", page.display());
            }
            included += 1;
        }
    }
    assert!(included > 20, "{included}");
}

#[test]
fn every_link_and_picture_leads_to_a_file_and_a_heading() {
    let mut followed = 0;
    for (page, text) in pages() {
        for link in between(&text, "](", ')').filter(|link| !link.contains("://")) {
            let (file, heading) = link.split_once('#').unwrap_or((link, ""));
            let path = if file.is_empty() { page.clone() } else { page.parent().unwrap().join(file) };
            assert!(path.exists(), "{}: {link}", page.display());
            if !heading.is_empty() {
                let target = fs::read_to_string(&path).unwrap();
                let mut headings = target.lines().filter(|line| line.starts_with('#'));
                let found = headings.any(|line| anchor(line.trim_start_matches('#')) == heading);
                assert!(found, "{}: {link}", page.display());
            }
            followed += 1;
        }
    }
    assert!(followed > 30, "{followed}");
}

#[test]
fn every_figure_is_shown_and_has_a_measurement() {
    let script = fs::read_to_string(root().join("scripts/book.py")).unwrap();
    let text: String = pages().into_iter().map(|(_, text)| text).collect();
    let files = fs::read_dir(root().join("docs/book/src/figures")).unwrap();
    let names: BTreeSet<_> = files.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    assert!(names.len() > 20, "{names:?}");
    for name in &names {
        let (stem, kind) = name.rsplit_once('.').unwrap();
        // The CSV files are for readers who compute with a table.
        assert!(kind == "csv" || text.contains(&format!("figures/{name}")), "no page shows {name}");
        // A picture's name is that of its measurement and that of the picture.
        let mut written = stem.match_indices('-').map(|(at, _)| &stem[..at]).chain([stem]);
        assert!(
            written.any(|part| script.contains(&format!("\"{part}\"")) || script.contains(&format!("\"{part}.md\""))),
            "{name}"
        );
    }
}
