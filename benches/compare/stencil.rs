//! The 5-point Jacobi kernel with the exchange of halos, beside the same kernel without.
//! `benches/rivals/stencil.h` does the same: change both or neither.
//!
//! The field is a mode of the discrete Laplace operator with zeros around it, so that each sweep
//! multiplies it by a number known beforehand, however many sweeps the timing needs.

use crate::batches::{Batches, TURNS, median, nanoseconds};
use pgas::{Boundary, GlobalArray, LocalView, Result, World};
use std::f64::consts::PI;
use std::time::Instant;

/// Rows and columns.
const FIELD: usize = 2000;
/// A row with its two halo cells.
const STRIDE: usize = FIELD + 2;
/// Sweeps of a batch.
const SWEEPS: usize = 4;

/// Rows `first` to `last`, counted with the halo.
#[inline(never)]
fn sweep_rows(from: &[f64], to: &mut [f64], first: usize, last: usize) {
    for row in first..=last {
        let here = row * STRIDE;
        // All of one length, so that the loop is made of vectors.
        let [up, left, right, down] = [here - STRIDE + 1, here, here + 2, here + STRIDE + 1]
            .map(|start| &from[start..start + FIELD]);
        let out = &mut to[here + 1..][..FIELD];
        for column in 0..FIELD {
            out[column] = 0.25 * (up[column] + down[column] + left[column] + right[column]);
        }
    }
}

/// The mode of a field of `rows` rows; rows and columns count from 1, between zeros.
fn mode(rows: usize, row: usize, column: usize) -> f64 {
    let angle = |waves: f64, at: usize, count: usize| waves * PI * at as f64 / (count + 1) as f64;
    angle(7.0, row, rows).sin() * angle(11.0, column, FIELD).sin()
}

/// What a sweep multiplies the mode by.
fn factor(rows: usize) -> f64 {
    let cos = |waves: f64, count: usize| (waves * PI / (count + 1) as f64).cos();
    f64::midpoint(cos(7.0, rows), cos(11.0, FIELD))
}

/// The mode at a rank's own cell: of the whole field, or of each rank's block for itself.
#[derive(Clone, Copy)]
struct Mode {
    rows: usize,
    first: usize,
}

impl Mode {
    fn begin(self, view: &mut LocalView<'_, f64, 2>, scale: f64) {
        view.with_halo_mut().fill(0.0);
        for ((row, column), value) in view.array_mut().indexed_iter_mut() {
            *value = scale * mode(self.rows, self.first + row + 1, column + 1);
        }
    }

    fn check(self, view: &LocalView<'_, f64, 2>, sweeps: i32) {
        let scale = factor(self.rows).powi(sweeps);
        for ((row, column), value) in view.array().indexed_iter() {
            let expected = scale * mode(self.rows, self.first + row + 1, column + 1);
            assert!(
                (value - expected).abs() < 1e-10,
                "{value} for {expected} in row {row}, column {column} after {sweeps} sweeps"
            );
        }
    }
}

const FIGURES: [&str; 3] = ["stencil_exchange", "stencil_overlap", "stencil_alone"];

pub(crate) fn run(world: &World, batches: Batches) -> Result<()> {
    let rows = FIELD / world.size();
    let whole = Mode {
        rows: FIELD,
        first: world.rank() * rows,
    };
    let block = Mode { rows, first: 0 };
    let field = || {
        GlobalArray::builder(world, [FIELD, FIELD])
            .grid([world.size(), 1])
            .halo([1, 1])
            .boundary([Boundary::Fixed(0.0), Boundary::Fixed(0.0)])
            .faces_only()
            .build()
    };
    // One pair of fields for all, so that caches hold as much of it as of the rivals'.
    let (mut one, mut other) = (field()?, field()?);
    let mut fields = Sweeps {
        views: [one.local()?, other.local()?],
        sweeps: 0,
    };
    let mut times = FIGURES.map(|_| Vec::new());
    for turn in 0..TURNS {
        for place in 0..FIGURES.len() {
            // Who goes first changes: A B C C B A A B C.
            let which = match turn % 2 {
                0 => place,
                _ => FIGURES.len() - 1 - place,
            };
            let mode = if FIGURES[which] == "stencil_alone" {
                block
            } else {
                whole
            };
            fields.begin(mode);
            for batch in 0..=batches.count {
                world.barrier()?;
                let begin = Instant::now();
                for _ in 0..SWEEPS {
                    match FIGURES[which] {
                        "stencil_exchange" => fields.exchange(rows)?,
                        "stencil_overlap" => fields.overlap(rows)?,
                        _ => fields.alone(rows),
                    }
                }
                world.barrier()?;
                // The first one does not count.
                if batch > 0 {
                    times[which].push(nanoseconds(begin.elapsed()) / SWEEPS as f64);
                }
            }
            fields.check(mode);
        }
    }
    if world.rank() == 0 {
        let [exchange, overlap, alone] = times.map(|mut times| median(&mut times));
        println!("figure stencil_alone {alone}");
        println!("figure stencil_exchange {exchange} {alone}");
        println!("figure stencil_overlap {overlap} {alone}");
    }
    world.barrier()
}

/// Two fields in turn: the second is computed from the first.
struct Sweeps<'a> {
    views: [LocalView<'a, f64, 2>; 2],
    sweeps: i32,
}

impl Sweeps<'_> {
    fn begin(&mut self, mode: Mode) {
        mode.begin(&mut self.views[0], 1.0);
        mode.begin(&mut self.views[1], 0.0);
        self.sweeps = 0;
    }

    fn check(&self, mode: Mode) {
        mode.check(&self.views[0], self.sweeps);
    }

    /// The other field is next.
    fn turn(&mut self) {
        self.views.swap(0, 1);
        self.sweeps += 1;
    }

    fn alone(&mut self, rows: usize) {
        let [from, to] = &mut self.views;
        sweep_rows(from, to, 1, rows);
        self.turn();
    }

    fn exchange(&mut self, rows: usize) -> Result<()> {
        self.views[0].exchange()?;
        self.alone(rows);
        Ok(())
    }

    fn overlap(&mut self, rows: usize) -> Result<()> {
        let [from, to] = &mut self.views;
        let exchange = from.exchange_begin()?;
        sweep_rows(&exchange, to, 2, rows - 1);
        exchange.finish()?;
        sweep_rows(from, to, 1, 1);
        sweep_rows(from, to, rows, rows);
        self.turn();
        Ok(())
    }
}
