//! Heat spreading over a plate, computed by all ranks together:
//!
//! ```console
//! $ ucxrun -n 4 target/release/examples/stencil
//! $ ucxrun -n 4 target/release/examples/stencil --input examples/data/springs.npy --output heat.png
//! ```
//!
//! In one step every point becomes the mean of itself and its four neighbours, which is the heat
//! equation with κ·Δt/Δx² = 1/5; the points on the edge keep their values. Each rank computes a
//! block of the plate. The points beside its block are other ranks':
//!
//! - `--variant halo` (the default): each rank has copies of them, ghost cells around its block,
//!   which all ranks exchange in each step while they compute what needs none of them;
//! - `--variant one-sided`: each rank reads them from their owners, without those ranks' doing
//!   anything.

mod arguments;
#[path = "stencil/blocks.rs"]
mod blocks;
#[path = "stencil/files.rs"]
mod files;

use blocks::Blocks;
use clap::{Parser, ValueEnum};
use files::{Format, Output};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use ndarray::ArrayView;
use pgas::{GlobalArray, Op, World};
use std::f64::consts::PI;
use std::fs::File;
use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Heat spreading over a plate, computed by as many ranks as ucxrun starts.
#[derive(Parser)]
struct Arguments {
    /// Rows and columns of a square grid [default: 1024]
    #[arg(long, conflicts_with_all = ["rows", "cols"])]
    n: Option<usize>,
    /// Rows of the grid
    #[arg(long, requires = "cols")]
    rows: Option<usize>,
    /// Columns of the grid
    #[arg(long, requires = "rows")]
    cols: Option<usize>,
    /// How a rank gets the points beside its block
    #[arg(long, default_value = "halo")]
    variant: Variant,
    /// Number of time steps
    #[arg(long, default_value_t = 2000)]
    iterations: u32,
    /// Temperatures to begin with: a NumPy array (.npy, 2-D, float64 or float32) or a picture (.png)
    #[arg(long, value_name = "FILE", conflicts_with_all = ["n", "rows", "cols"])]
    input: Option<PathBuf>,
    /// Writes the final temperatures as a picture
    #[arg(long, value_name = "FILE.png")]
    output: Option<PathBuf>,
    /// Writes the final temperatures as a NumPy array
    #[arg(long, value_name = "FILE.npy")]
    output_npy: Option<PathBuf>,
    /// What to compare the result with [default: serial with --input, exact without]
    #[arg(long)]
    verify: Option<Verify>,
}

impl Arguments {
    fn verify(&self) -> Verify {
        self.verify.unwrap_or(match self.input {
            Some(_) => Verify::Serial,
            None => Verify::Exact,
        })
    }
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Verify {
    /// The solution of the difference equation, within rounding (not with --input)
    Exact,
    /// The same steps by rank 0 alone, bit for bit
    Serial,
    None,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Variant {
    /// Ghost cells, exchanged in each step while the inner points are computed
    Halo,
    /// Reads from their owners in each step
    OneSided,
}

fn main() -> pgas::Result<ExitCode> {
    World::run(|world| arguments::with(world, simulate))
}

fn simulate(world: &World, arguments: &Arguments) -> pgas::Result<ExitCode> {
    // Files are rank 0's: the other ranks need not see them.
    let mut start = Start::default();
    if world.rank() == 0 {
        match Start::prepare(arguments) {
            Ok(prepared) => start = prepared,
            Err(error) => eprintln!("stencil: {error}"),
        }
    }
    let shape = world.broadcast(0, [start.rows, start.cols])?;
    if shape == [0, 0] {
        // Rank 0 has said why. All ranks leave together, so that none waits for another.
        return Ok(ExitCode::FAILURE);
    }
    // Each step reads the temperatures `now` and writes `next`, then the two change places. The
    // points on the edge are never written again, so both begin with the same values.
    let halo = match arguments.variant {
        Variant::Halo => [1, 1],
        Variant::OneSided => [0, 0],
    };
    let plate = || {
        GlobalArray::<f64, 2>::builder(world, shape)
            .halo(halo)
            .faces_only()
    };
    let (mut now, mut next) = if arguments.input.is_none() {
        let modes = Modes::new(shape, 0);
        let value = |[row, col]: [usize; 2]| modes.at(row, col);
        (plate().from_fn(value)?, plate().from_fn(value)?)
    } else {
        let (now, next) = (plate().build()?, plate().build()?);
        if world.rank() == 0 {
            // Every point to the rank it belongs to.
            let field = ArrayView::from_shape(shape, &start.field);
            let field = field.map_err(|error| io::Error::other(error.to_string()));
            match field {
                Ok(field) => {
                    now.put_section((.., ..), field)?;
                    next.put_section((.., ..), field)?;
                }
                Err(error) => world.abort(1, &error.to_string()),
            }
        }
        (now, next)
    };

    let blocks = Blocks::new(&now, world.rank());
    let mut progress = Progress::new(world, arguments.iterations);
    world.barrier()?;
    let begin = Instant::now();
    match arguments.variant {
        Variant::Halo => {
            // The ranks enter this mode once, for all steps.
            let (mut from, mut to) = (now.local()?, next.local()?);
            for done in 1..=arguments.iterations {
                blocks.step_with_halo(&mut from, &mut to)?;
                std::mem::swap(&mut from, &mut to);
                progress.update(done);
            }
        }
        Variant::OneSided => {
            for done in 1..=arguments.iterations {
                blocks.step_one_sided(&mut now, &mut next)?;
                std::mem::swap(&mut now, &mut next);
                progress.update(done);
            }
        }
    }
    world.barrier()?;
    let time = begin.elapsed().as_secs_f64();
    progress.clear();
    if arguments.variant == Variant::Halo && arguments.iterations % 2 == 1 {
        // The views changed places, the arrays did not.
        std::mem::swap(&mut now, &mut next);
    }

    let grid = Grid {
        rows: shape[0],
        cols: shape[1],
    };
    let points = ((grid.rows - 2) * (grid.cols - 2)) as f64 * f64::from(arguments.iterations);
    let verdict = match arguments.verify() {
        Verify::Exact => grid.compare_with_exact(world, &mut now, arguments.iterations)?,
        Verify::Serial => grid.compare_with_serial(world, &mut now, start.field, arguments)?,
        Verify::None => Verdict {
            correct: true,
            text: "not verified".to_owned(),
        },
    };
    if world.rank() == 0 {
        println!(
            "grid: {} × {}, {} iterations, ranks: {} as {} × {}",
            grid.rows,
            grid.cols,
            arguments.iterations,
            world.size(),
            now.grid()[0],
            now.grid()[1]
        );
        // A point takes 5 operations, one load from memory (its neighbours are in the cache by
        // then) and one store.
        println!(
            "time: {time:.3} s, {:.0} MFLOP/s, {:.1} GB/s",
            5.0 * points / time / 1e6,
            16.0 * points / time / 1e9
        );
        println!("{}", verdict.text);
    }
    let written = grid.write(world, &mut now, start.outputs)?;
    now.close()?;
    next.close()?;
    Ok(match verdict.correct && written {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

/// The whole plate.
struct Grid {
    rows: usize,
    cols: usize,
}

impl Grid {
    /// Against the exact solution: the difference must be no more than rounding can make it.
    fn compare_with_exact(
        &self,
        world: &World,
        now: &mut GlobalArray<f64, 2>,
        iterations: u32,
    ) -> pgas::Result<Verdict> {
        let now = now.read()?;
        let modes = Modes::new([self.rows, self.cols], iterations);
        let mut largest = 0.0_f64;
        for ([row, col], found) in now.owned().iter().zip(now.array()) {
            let error = (found - modes.at(row, col)).abs();
            // Not `max`, to which a NaN is nothing.
            if error > largest || error.is_nan() {
                largest = error;
            }
        }
        let largest = world.all_reduce(largest, Op::Max)?;
        // 5 operations in each step, each wrong by at most half of epsilon times the value.
        let heights: f64 = MODES.iter().map(|(height, ..)| height).sum();
        let allowed = heights * (5.0 * f64::from(iterations) + 50.0) * f64::EPSILON;
        let correct = largest <= allowed;
        let text = if correct {
            "verified: the exact solution"
        } else {
            "WRONG: not the exact solution"
        };
        Ok(Verdict {
            correct,
            text: format!("{text}, largest error {largest:.1e}, rounding explains {allowed:.1e}"),
        })
    }

    /// Against the same steps, done by rank 0 alone: every bit must be equal.
    fn compare_with_serial(
        &self,
        world: &World,
        now: &mut GlobalArray<f64, 2>,
        input: Vec<f64>,
        arguments: &Arguments,
    ) -> pgas::Result<Verdict> {
        let mut different = 0_u64;
        if world.rank() == 0 {
            let mut serial = input;
            if arguments.input.is_none() {
                let modes = Modes::new([self.rows, self.cols], 0);
                let points =
                    (0..self.rows).flat_map(|row| (0..self.cols).map(move |col| (row, col)));
                serial = points.map(|(row, col)| modes.at(row, col)).collect();
            }
            let mut next = serial.clone();
            for _ in 0..arguments.iterations {
                let rows: Vec<&[f64]> = serial.chunks_exact(self.cols).collect();
                let inner = next.chunks_exact_mut(self.cols).skip(1);
                for (three, result) in rows.windows(3).zip(inner) {
                    let inside = 1..self.cols - 1;
                    blocks::smooth(three[0], three[1], three[2], result, inside);
                }
                std::mem::swap(&mut serial, &mut next);
            }
            for (row, values) in serial.chunks_exact(self.cols).enumerate() {
                let found = now.get_section((row, ..))?;
                let pairs = found.iter().zip(values);
                different += pairs.filter(|(a, b)| a.to_bits() != b.to_bits()).count() as u64;
            }
        }
        let different = world.broadcast(0, different)?;
        Ok(Verdict {
            correct: different == 0,
            text: match different {
                0 => "verified: bit for bit as computed by one rank alone".to_owned(),
                _ => format!("WRONG: {different} points are not as computed by one rank alone"),
            },
        })
    }

    /// Rank 0 fetches the plate row by row and writes it into the files. Whether that succeeded.
    fn write(
        &self,
        world: &World,
        now: &mut GlobalArray<f64, 2>,
        outputs: Vec<Output>,
    ) -> pgas::Result<bool> {
        let view = now.read()?;
        let low = view.array().iter().copied().fold(f64::INFINITY, f64::min);
        let high = view
            .array()
            .iter()
            .copied()
            .fold(f64::NEG_INFINITY, f64::max);
        view.close()?;
        let low = world.all_reduce(low, Op::Min)?;
        let high = world.all_reduce(high, Op::Max)?;
        let mut success = true;
        for output in outputs {
            let path = output.path.clone();
            let written = output
                .begin(self.rows, self.cols, [low, high])
                .and_then(|mut file| {
                    for row in 0..self.rows {
                        let values = now.get_section((row, ..)).map_err(io::Error::other)?;
                        file.row(values.as_slice().unwrap_or(&[]))?;
                    }
                    file.finish()
                });
            match written {
                Ok(()) => println!(
                    "written: {}, values from {low:.4} to {high:.4}",
                    path.display()
                ),
                Err(error) => {
                    eprintln!("stencil: {}: {error}", path.display());
                    success = false;
                }
            }
        }
        world.broadcast(0, success)
    }
}

/// What rank 0 knows before the others: all zero if there is nothing to do.
#[derive(Default)]
struct Start {
    rows: usize,
    cols: usize,
    /// The input's values; none without an input.
    field: Vec<f64>,
    outputs: Vec<Output>,
}

impl Start {
    /// Reads and checks all that comes from outside; the error is one line.
    fn prepare(arguments: &Arguments) -> Result<Self, String> {
        let mut start = Self::default();
        if let Some(path) = &arguments.input {
            if arguments.verify == Some(Verify::Exact) {
                return Err(
                    "there is no exact solution for --input; use --verify serial".to_owned(),
                );
            }
            let field = files::read(path)?;
            (start.rows, start.cols, start.field) = (field.rows, field.cols, field.values);
        } else {
            let n = arguments.n.unwrap_or(1024);
            start.rows = arguments.rows.unwrap_or(n);
            start.cols = arguments.cols.unwrap_or(n);
        }
        let (rows, cols) = (start.rows, start.cols);
        if rows < 3 || cols < 3 {
            return Err(format!(
                "a grid of {rows} × {cols} has no inside; the smallest is 3 × 3"
            ));
        }
        let bytes = rows.checked_mul(cols).and_then(|n| n.checked_mul(8));
        if bytes.is_none_or(|bytes| isize::try_from(bytes).is_err()) {
            return Err(format!(
                "a grid of {rows} × {cols} is too large for any machine"
            ));
        }
        // Before the work, not after it, is the time to hear of a bad file name.
        if let Some(path) = &arguments.output {
            start.outputs.push(Output::create(path, Format::Png)?);
        }
        if let Some(path) = &arguments.output_npy {
            start.outputs.push(Output::create(path, Format::Npy)?);
        }
        Ok(start)
    }
}

struct Verdict {
    correct: bool,
    text: String,
}

/// Temperatures with an exact solution: a sum of standing waves
/// `height · sin(π·down·row/(rows−1)) · sin(π·across·col/(cols−1))`, each of which only becomes
/// lower, by the same factor in each step:
/// `(1 + 2·cos(π·down/(rows−1)) + 2·cos(π·across/(cols−1))) / 5`.
///
/// Here are their heights, and how many half waves there are down and across the plate.
const MODES: [(f64, u32, u32); 5] = [
    (1.0, 1, 1),
    (0.5, 3, 2),
    (0.4, 4, 7),
    (0.3, 12, 10),
    (0.3, 25, 40),
];

/// [`MODES`] after some steps.
struct Modes {
    /// For each mode: height and sine by row, sine by column.
    waves: Vec<(Vec<f64>, Vec<f64>)>,
}

impl Modes {
    fn new([rows, cols]: [usize; 2], iterations: u32) -> Self {
        let waves = MODES.iter().map(|&(height, down, across)| {
            let down = PI * f64::from(down) / (rows - 1) as f64;
            let across = PI * f64::from(across) / (cols - 1) as f64;
            let factor = (1.0 + 2.0 * down.cos() + 2.0 * across.cos()) / 5.0;
            let height = height * factor.powf(iterations.into());
            (
                (0..rows)
                    .map(|row| height * (down * row as f64).sin())
                    .collect(),
                (0..cols).map(|col| (across * col as f64).sin()).collect(),
            )
        });
        Self {
            waves: waves.collect(),
        }
    }

    /// The temperature of a point.
    fn at(&self, row: usize, col: usize) -> f64 {
        let waves = self.waves.iter();
        waves
            .map(|(by_row, by_col)| by_row[row] * by_col[col])
            .sum()
    }
}

/// A progress bar, if the run takes longer than about two seconds and somebody is looking.
struct Progress {
    terminal: Option<File>,
    bar: Option<ProgressBar>,
    begin: Instant,
    iterations: u32,
}

impl Progress {
    fn new(world: &World, iterations: u32) -> Self {
        Self {
            terminal: if world.rank() == 0 { terminal() } else { None },
            bar: None,
            begin: Instant::now(),
            iterations,
        }
    }

    fn update(&mut self, done: u32) {
        if let Some(bar) = &self.bar {
            bar.set_position(done.into());
        } else if self.terminal.is_some() && self.begin.elapsed() > Duration::from_millis(500) {
            let estimate = self.begin.elapsed() * (self.iterations / done);
            let terminal = self
                .terminal
                .take()
                .and_then(|file| Some((file.try_clone().ok()?, file)));
            if let (Some((read, write)), true) = (terminal, estimate > Duration::from_secs(2)) {
                let terminal = console::Term::read_write_pair(read, write);
                let bar = ProgressBar::with_draw_target(
                    Some(self.iterations.into()),
                    ProgressDrawTarget::term(terminal, 10),
                );
                if let Ok(style) =
                    ProgressStyle::with_template("{wide_bar} {pos}/{len}, {eta} left")
                {
                    bar.set_style(style);
                }
                self.bar = Some(
                    bar.with_elapsed(self.begin.elapsed())
                        .with_position(done.into()),
                );
            }
        }
    }

    fn clear(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

/// Standard error if it is a terminal: ours, or that of the launcher, which passes on whole lines
/// only and would keep a progress bar to itself.
fn terminal() -> Option<File> {
    let open = |path| File::options().read(true).write(true).open(path).ok();
    let launcher = format!("/proc/{}/fd/2", std::os::unix::process::parent_id());
    ["/proc/self/fd/2", &launcher]
        .into_iter()
        .filter_map(open)
        .find(File::is_terminal)
}
