//! Blurs a large picture, a part of it on each rank.
//!
//! ```console
//! $ ucxrun -n 4 target/release/examples/blur --width 8000 --height 6000 --output blurred.png
//! $ ucxrun -n 4 target/release/examples/blur --input blurred.png --radius 8 --output more.png
//! ```
//!
//! Without a file the picture is made up. Each rank has as many points of its neighbours around its part as the
//! filter needs; beyond the picture's edge is its mirror image. Rank 0 compares the places where the
//! ranks' parts and the picture's edges meet with a filter of its own, point by point.

mod arguments;
#[path = "blur/files.rs"]
mod files;
#[path = "blur/filter.rs"]
mod filter;
mod random;

use clap::Parser;
use files::{Input, Output};
use pgas::{Boundary, GlobalArray, World};
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

/// Blurs a picture.
#[derive(Parser)]
struct Arguments {
    /// A picture, a PNG [default: one that is made up]
    #[arg(short, long, value_name = "FILE.png", conflicts_with_all = ["width", "height"])]
    input: Option<PathBuf>,
    /// Points in each row
    #[arg(long, default_value_t = 400, value_parser = clap::value_parser!(u32).range(1..1 << 20))]
    width: u32,
    /// Rows
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u32).range(1..1 << 20))]
    height: u32,
    /// How many points on each side of a point have an influence on it
    #[arg(short, long, default_value_t = 4)]
    radius: usize,
    /// Where to write the picture
    #[arg(short, long, value_name = "FILE.png")]
    output: Option<PathBuf>,
}

/// Red, green and blue.
pub type Pixel = [u8; 3];

fn main() -> pgas::Result<ExitCode> {
    World::run(|world| arguments::with(world, run))
}

fn run(world: &World, arguments: &Arguments) -> pgas::Result<ExitCode> {
    let radius = arguments.radius;
    // Files are rank 0's.
    let mut files = (None, None);
    let mut shape = [0, 0];
    if world.rank() == 0 {
        match begin(arguments) {
            Ok((input, output, size)) => (files, shape) = ((input, output), size),
            Err(error) => eprintln!("blur: {error}"),
        }
    }
    let shape = world.broadcast(0, shape)?;
    if shape == [0, 0] {
        return Ok(ExitCode::FAILURE);
    }
    let builder = GlobalArray::<Pixel, 2>::builder(world, shape)
        .halo([radius; 2])
        .boundary([Boundary::Mirror; 2]);
    let mut picture = match arguments.input {
        None => builder.from_fn(made_up)?,
        Some(_) => builder.build()?,
    };
    let (input, output) = files;
    let mut read = true;
    if let (Some(input), Some(path)) = (input, &arguments.input)
        && let Err(error) = fill(&picture, input)
    {
        eprintln!("blur: {}: {error}", path.display());
        read = false;
    }
    if !world.broadcast(0, read)? {
        return Ok(ExitCode::FAILURE);
    }
    let mut blurred = GlobalArray::<Pixel, 2>::new(world, shape)?;

    world.barrier()?;
    let begin = Instant::now();
    let (mut from, mut to) = (picture.local()?, blurred.local()?);
    from.exchange()?;
    filter::blur(from.with_halo(), to.array_mut(), radius);
    from.close()?;
    to.close()?;
    let time = begin.elapsed().as_secs_f64();

    let mut success = true;
    if world.rank() == 0 {
        let (wrong, compared) = compare(&picture, &blurred, radius)?;
        let [rows, cols] = shape;
        println!(
            "{cols} × {rows} points, radius {radius}, {} ranks as {:?}: {time:.3} s, {:.1} million points/s",
            world.size(),
            blurred.grid(),
            rows as f64 * cols as f64 / time / 1e6
        );
        match wrong {
            0 => println!("verified: {compared} points where parts meet, each computed alone"),
            _ => println!("WRONG: {wrong} of {compared} points"),
        }
        success = wrong == 0;
        if let (Some(output), Some(path)) = (output, &arguments.output) {
            match write(&blurred, output) {
                Ok(()) => println!("written: {}", path.display()),
                Err(error) => {
                    eprintln!("blur: {}: {error}", path.display());
                    success = false;
                }
            }
        }
    }
    let success = world.broadcast(0, success)?;
    picture.close()?;
    blurred.close()?;
    Ok(match success {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

/// The files, and the picture's rows and columns.
type Files = (Option<Input>, Option<Output>, [usize; 2]);

/// Opens the files; the error is one line.
fn begin(arguments: &Arguments) -> Result<Files, String> {
    if !(1..=filter::LARGEST).contains(&arguments.radius) {
        let (radius, largest) = (arguments.radius, filter::LARGEST);
        return Err(format!("radius {radius}: it must be from 1 to {largest}"));
    }
    let mut shape = [arguments.height as usize, arguments.width as usize];
    let mut input = None;
    if let Some(path) = &arguments.input {
        let opened = Input::open(path).map_err(|error| format!("{}: {error}", path.display()))?;
        shape = opened.shape;
        input = Some(opened);
    }
    let output = arguments.output.as_ref().map(|path| {
        Output::create(path, shape).map_err(|error| format!("{}: {error}", path.display()))
    });
    Ok((input, output.transpose()?, shape))
}

/// Every row to the ranks it belongs to.
fn fill(picture: &GlobalArray<Pixel, 2>, mut input: Input) -> io::Result<()> {
    for row in 0..picture.shape()[0] {
        let pixels = input.row()?;
        let pixels = ndarray::ArrayView2::from_shape((1, pixels.len()), &pixels);
        let pixels = pixels.map_err(io::Error::other)?;
        picture
            .put_section((row, ..), pixels)
            .map_err(io::Error::other)?;
    }
    Ok(())
}

fn write(picture: &GlobalArray<Pixel, 2>, mut output: Output) -> io::Result<()> {
    for row in 0..picture.shape()[0] {
        let pixels = picture.get_section((row, ..)).map_err(io::Error::other)?;
        output.row(pixels.as_slice().unwrap_or_default())?;
    }
    output.finish()
}

/// How many points are not as they must be, and of how many: those around the corners of all ranks'
/// parts.
fn compare(
    picture: &GlobalArray<Pixel, 2>,
    blurred: &GlobalArray<Pixel, 2>,
    radius: usize,
) -> pgas::Result<(u64, u64)> {
    const AROUND: usize = 4;
    let shape = picture.shape();
    let grid = picture.grid();
    let mut lines = [vec![], vec![]];
    for (d, lines) in lines.iter_mut().enumerate() {
        // Where parts begin along this dimension, and the end.
        for part in 0..=grid[d] {
            let start = (shape[d] * part).div_ceil(grid[d]);
            lines.extend(start.saturating_sub(AROUND)..shape[d].min(start + AROUND));
        }
        lines.sort_unstable();
        lines.dedup();
    }
    let [rows, cols] = lines;
    let points: Vec<[usize; 2]> = rows
        .iter()
        .flat_map(|&row| cols.iter().map(move |&col| [row, col]))
        .collect();
    let around = |&at: &[usize; 2]| filter::around(at, shape, radius);
    let around = picture.gather(&points.iter().flat_map(around).collect::<Vec<_>>())?;
    let around = around.chunks_exact((2 * radius + 1).pow(2));
    let expected = around.map(|around| filter::point(around, radius));
    let found = blurred.gather(&points)?;
    let wrong = found.iter().zip(expected).filter(|(a, b)| *a != b);
    Ok((wrong.count() as u64, points.len() as u64))
}

/// A point of a picture of rings, lines and noise.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "colours from 0 to 255"
)]
fn made_up([row, col]: [usize; 2]) -> Pixel {
    let (y, x) = (row as f64, col as f64);
    let rings = ((x - 150.0).hypot(y - 100.0) / 6.0).sin();
    let stripes = ((x + y) / 25.0).sin();
    let noise = random::below((row as u64) << 32 | col as u64, 64) as f64;
    [
        (128.0 + 90.0 * rings) as u8,
        (128.0 + 90.0 * stripes) as u8,
        (96.0 + noise + 60.0 * rings * stripes) as u8,
    ]
}
