//! What the programs in `examples/` leave behind, read by others. `cargo test` builds them.

use std::collections::HashSet;
use std::path::PathBuf;
use std::time::Duration;
use ucxrun::{Job, Output};

/// A program of `examples/`, as cargo has built it beside this test.
fn example(name: &str) -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let folder = own.parent().and_then(|deps| deps.parent()).unwrap();
    let program = folder.join("examples").join(name);
    assert!(
        program.exists(),
        "{} is not there: cargo build --examples makes it",
        program.display()
    );
    program
}

/// Cells that live, as row and column.
type Cells = HashSet<(i32, i32)>;

/// The next generation on a board of so many rows and columns, by Conway's rule.
fn next(cells: &Cells, rows: i32, cols: i32) -> Cells {
    let lives = |row, col| {
        let near = |d: (i32, i32)| cells.contains(&(row + d.0, col + d.1));
        let around = (0..9).map(|k| (k / 3 - 1, k % 3 - 1));
        let neighbours = around.filter(|d| *d != (0, 0) && near(*d)).count();
        neighbours == 3 || neighbours == 2 && near((0, 0))
    };
    let all = (0..rows * cols).map(|k| (k / cols, k % cols));
    all.filter(|&(row, col)| lives(row, col)).collect()
}

/// Each picture of the film has the cells of its generation, as points of the right colour.
#[test]
fn a_film_of_life() {
    const MARGIN: i32 = 7;
    const SCALE: usize = 3;
    let path = std::env::temp_dir().join(format!("pgas-life-{}.gif", std::process::id()));
    let pattern = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/data/r-pentomino.rle");
    let outcome = Job::new(example("life"))
        .arg(pattern)
        .args(["--generations", "11", "--every", "2", "--margin", "7"])
        .args(["--scale", "3", "--output"])
        .arg(&path)
        .ranks(4)
        .output(Output::Capture)
        .timeout(Duration::from_secs(60))
        .default_environment()
        .run()
        .unwrap();
    let said = String::from_utf8_lossy(&outcome.stdout);
    assert!(outcome.success(), "{outcome}\n{said}");
    assert!(said.contains("verified"), "{said}");

    let mut options = gif::DecodeOptions::new();
    options.set_color_output(gif::ColorOutput::RGBA);
    let mut film = options
        .read_info(std::fs::File::open(&path).unwrap())
        .unwrap();
    let (rows, cols) = (3 + 2 * MARGIN, 3 + 2 * MARGIN);
    let side = 17 * SCALE;
    assert_eq!(
        (usize::from(film.width()), usize::from(film.height())),
        (side, side)
    );
    assert_eq!(film.repeat(), gif::Repeat::Infinite);
    // .XX
    // XX.
    // .X.
    let mut cells: Cells = [(0, 1), (0, 2), (1, 0), (1, 1), (2, 1)]
        .map(|(row, col)| (row + MARGIN, col + MARGIN))
        .into();
    let (mut generation, mut pictures) = (0, 0);
    // Each second generation, and the last.
    for wanted in [0, 2, 4, 6, 8, 10, 11] {
        while generation < wanted {
            cells = next(&cells, rows, cols);
            generation += 1;
        }
        let picture = film.read_next_frame().unwrap().expect("a picture");
        pictures += 1;
        assert_eq!(picture.delay, 6);
        assert_eq!(picture.buffer.len(), 4 * side * side);
        for (k, point) in picture.buffer.as_chunks::<4>().0.iter().enumerate() {
            let cell = |at: usize| i32::try_from(at / SCALE).unwrap();
            let lives = cells.contains(&(cell(k / side), cell(k % side)));
            let right = if lives {
                [255, 205, 90, 255]
            } else {
                [18, 22, 34, 255]
            };
            assert_eq!(*point, right, "generation {wanted}, point {k}");
        }
    }
    assert_eq!((pictures, cells.len() > 5), (7, true));
    assert!(film.read_next_frame().unwrap().is_none());
    std::fs::remove_file(&path).unwrap();
}

/// Each class has formulas of its own for the ranks that are known.
#[test]
fn all_classes_of_integer_sort() {
    for class in ["S", "W", "A"] {
        let outcome = Job::new(example("nas_is"))
            .arg(class)
            .ranks(4)
            .output(Output::Capture)
            .timeout(Duration::from_secs(100))
            .default_environment()
            .run()
            .unwrap();
        let said = String::from_utf8_lossy(&outcome.stdout);
        assert!(outcome.success(), "{outcome}\n{said}");
        for line in [
            &format!("class {class}: "),
            "partial verification: 50 of 50 ranks as published",
            "full verification: 0 keys out of order",
            "VERIFICATION SUCCESSFUL",
        ] {
            assert!(said.contains(line), "{said}");
        }
    }
}
