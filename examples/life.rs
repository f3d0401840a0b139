//! Conway's Game of Life on a board that is divided among all ranks.
//!
//! ```console
//! $ ucxrun -n 4 target/release/examples/life [PATTERN.rle] [--generations N] [--output life.gif]
//! ```
//!
//! Without a file it is Gosper's glider gun, which sends a glider of 5 cells off every 30
//! generations: after each 30 there are 5 cells more, as long as none has reached the edge. With a file
//! it is compared with `--population`, or else with what rank 0 computes alone. Each rank has one line
//! of its neighbours' cells around its own, exchanged in each generation.

mod arguments;
#[path = "life/picture.rs"]
mod picture;
#[path = "life/rle.rs"]
mod rle;

use clap::Parser;
use ndarray::{Array2, ArrayView2, ArrayViewMut2};
use pgas::{Boundary, GlobalArray, Op, World};
use picture::Film;
use rle::{Pattern, Rule};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

/// Runs the Game of Life.
#[derive(Parser)]
struct Arguments {
    /// What lives at first, run-length encoded [default: Gosper's glider gun]
    pattern: Option<PathBuf>,
    /// How many generations
    #[arg(short, long, default_value_t = 120)]
    generations: u32,
    /// Empty cells around the pattern; what is beyond them is dead
    #[arg(short, long, default_value_t = 40, value_parser = clap::value_parser!(u32).range(..1 << 20))]
    margin: u32,
    /// Joins the board's opposite edges
    #[arg(long)]
    torus: bool,
    /// Cells that must live in the end
    #[arg(long)]
    population: Option<u64>,
    /// Writes a film, a GIF
    #[arg(short, long, value_name = "FILE.gif")]
    output: Option<PathBuf>,
    /// Generations from picture to picture
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..))]
    every: u32,
    /// Points of a cell in each direction
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    scale: u32,
}

const GUN: &str = include_str!("data/gosper-glider-gun.rle");

fn main() -> pgas::Result<ExitCode> {
    World::run(|world| arguments::with(world, live))
}

fn live(world: &World, arguments: &Arguments) -> pgas::Result<ExitCode> {
    // Files are rank 0's.
    let mut film = None;
    let mut start: Option<Pattern> = None;
    if world.rank() == 0 {
        match begin(arguments) {
            Ok((pattern, output)) => {
                film = output;
                start = Some(pattern);
            }
            Err(error) => eprintln!("life: {error}"),
        }
    }
    let start = world.broadcast_obj(0, (world.rank() == 0).then_some(&start))?;
    let Some(Pattern {
        rows,
        cols,
        cells,
        rule,
    }) = start
    else {
        return Ok(ExitCode::FAILURE);
    };
    let margin = arguments.margin as usize;
    let shape = [rows + 2 * margin, cols + 2 * margin];

    let boundary = match arguments.torus {
        true => Boundary::Periodic,
        false => Boundary::Fixed(0),
    };
    let board = || {
        GlobalArray::<u8, 2>::builder(world, shape)
            .halo([1, 1])
            .boundary([boundary; 2])
            .build()
    };
    let (mut now, mut next) = (board()?, board()?);
    let cells: Vec<[usize; 2]> = cells
        .into_iter()
        .map(|(row, col)| [row + margin, col + margin])
        .collect();
    if world.rank() == 0 {
        now.scatter(&cells, &vec![1; cells.len()])?;
    }
    world.barrier()?;

    let mut time = 0.0;
    let mut done = 0;
    let mut written = Ok(());
    loop {
        if let Some(film) = &mut film
            && written.is_ok()
        {
            let picture = now.get_section((.., ..))?;
            written = film.add(&picture);
        }
        // Rank 0 reads before the others go on: the views begin together.
        let round = match arguments.output {
            Some(_) => arguments.every,
            None => arguments.generations,
        };
        let end = arguments.generations.min(done + round);
        if end == done {
            break;
        }
        let (mut from, mut to) = (now.local()?, next.local()?);
        let begin = Instant::now();
        for _ in done..end {
            from.exchange()?;
            step(from.with_halo(), to.array_mut(), rule);
            std::mem::swap(&mut from, &mut to);
        }
        time += begin.elapsed().as_secs_f64();
        from.close()?;
        to.close()?;
        if (end - done) % 2 == 1 {
            // The views changed places, the arrays did not.
            std::mem::swap(&mut now, &mut next);
        }
        done = end;
    }

    let time = world.all_reduce(time, Op::Max)?;
    let view = now.read()?;
    let population: u64 = view.array().iter().map(|&cell| u64::from(cell)).sum();
    view.close()?;
    let population = world.all_reduce(population, Op::Sum)?;
    let (correct, verdict) = match expected(arguments) {
        Some(known) => (
            population == known,
            format!("{known} cells must live, {population} do"),
        ),
        None => {
            let wrong = compare(world, &now, &cells, rule, arguments)?;
            (wrong == 0, format!("{wrong} cells are not as on one rank"))
        }
    };
    if world.rank() == 0 {
        let [rows, cols] = shape;
        let updates = rows as f64 * cols as f64 * f64::from(arguments.generations);
        println!(
            "{rows} × {cols} cells, {} generations by {} ranks: {time:.3} s, {:.0} million cells/s",
            arguments.generations,
            world.size(),
            updates / time.max(1e-9) / 1e6
        );
        let word = if correct { "verified" } else { "WRONG" };
        println!("population: {population}\n{word}: {verdict}");
        if let (Some(film), Ok(())) = (film, &written) {
            written = film.finish();
        }
        match (&arguments.output, &written) {
            (Some(path), Ok(())) => println!("written: {}", path.display()),
            (Some(path), Err(error)) => eprintln!("life: {}: {error}", path.display()),
            _ => {}
        }
    }
    let success = world.broadcast(0, correct && written.is_ok())?;
    now.close()?;
    next.close()?;
    Ok(match success {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

/// Reads the pattern and begins the film.
fn begin(arguments: &Arguments) -> Result<(Pattern, Option<Film>), String> {
    let pattern = match &arguments.pattern {
        None => rle::parse(GUN)?,
        Some(path) => {
            let text = std::fs::read_to_string(path);
            let text = text.map_err(|error| format!("{}: {error}", path.display()))?;
            rle::parse(&text).map_err(|error| format!("{}: {error}", path.display()))?
        }
    };
    let margin = 2 * arguments.margin as usize;
    let (rows, cols) = (pattern.rows + margin, pattern.cols + margin);
    let film = arguments.output.as_ref().map(|path| {
        Film::create(path, rows, cols, arguments.scale as usize)
            .map_err(|error| format!("{}: {error}", path.display()))
    });
    Ok((pattern, film.transpose()?))
}

/// Cells that must live in the end, if that is known.
fn expected(arguments: &Arguments) -> Option<u64> {
    let guns = u64::from(arguments.generations / 30);
    // A glider moves by one cell in four generations.
    let far = arguments.generations / 4 < arguments.margin;
    let known = arguments.generations.is_multiple_of(30) && far && arguments.pattern.is_none();
    arguments.population.or(known.then_some(36 + 5 * guns))
}

/// The next generation of a rank's cells, from these with their ghost cells around them.
fn step(from: ArrayView2<'_, u8>, mut to: ArrayViewMut2<'_, u8>, rule: Rule) {
    for (k, mut row) in to.rows_mut().into_iter().enumerate() {
        let line = |d| from.row(k + d).to_slice().unwrap_or_default();
        let (above, here, below) = (line(0), line(1), line(2));
        let around = above.windows(3).zip(here.windows(3)).zip(below.windows(3));
        for (cell, ((above, here), below)) in row.iter_mut().zip(around) {
            let three = |cells: &[u8]| cells[0] + cells[1] + cells[2];
            let neighbours = three(above) + here[0] + here[2] + three(below);
            let counts = match here[1] {
                0 => rule.born,
                _ => rule.survives,
            };
            *cell = u8::from(counts >> neighbours & 1 == 1);
        }
    }
}

/// How many cells are not as rank 0 computes them alone.
fn compare(
    world: &World,
    found: &GlobalArray<u8, 2>,
    cells: &[[usize; 2]],
    rule: Rule,
    arguments: &Arguments,
) -> pgas::Result<u64> {
    let mut wrong = 0;
    if world.rank() == 0 {
        let [rows, cols] = found.shape();
        let mut board = Array2::<u8>::zeros((rows + 2, cols + 2));
        for &[row, col] in cells {
            board[[row + 1, col + 1]] = 1;
        }
        let inside = ndarray::s![1..=rows, 1..=cols];
        let mut next = board.clone();
        for _ in 0..arguments.generations {
            if arguments.torus {
                for (to, from) in [(0, rows), (rows + 1, 1)] {
                    let line = board.row(from).to_owned();
                    board.row_mut(to).assign(&line);
                }
                for (to, from) in [(0, cols), (cols + 1, 1)] {
                    let line = board.column(from).to_owned();
                    board.column_mut(to).assign(&line);
                }
            }
            step(board.view(), next.slice_mut(inside), rule);
            std::mem::swap(&mut board, &mut next);
        }
        let found = found.get_section((.., ..))?;
        let pairs = found.iter().zip(board.slice(inside));
        wrong = pairs.filter(|(a, b)| a != b).count() as u64;
    }
    world.broadcast(0, wrong)
}
