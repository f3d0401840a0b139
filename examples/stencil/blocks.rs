//! One time step of a rank's block of the plate, in two ways.

use pgas::{GlobalArray, LocalView};
use std::ops::Range;

/// Which part of the plate a rank has, and how it lies in its memory.
pub struct Blocks {
    /// Of the whole plate.
    shape: [usize; 2],
    rows: Range<usize>,
    cols: Range<usize>,
    /// Ghost cells on each side.
    halo: usize,
    /// From one row to the next in memory.
    width: usize,
}

/// Points of the block, by rows and columns in its memory.
struct Rectangle {
    rows: Range<usize>,
    cols: Range<usize>,
}

impl Blocks {
    pub fn new(plate: &GlobalArray<f64, 2>, rank: usize) -> Self {
        let [rows, cols] = plate.owned(rank).ranges().unwrap_or([0..0, 0..0]);
        let halo = plate.halo()[0];
        Self {
            shape: plate.shape(),
            width: cols.len() + 2 * halo,
            rows,
            cols,
            halo,
        }
    }

    /// The block's points that change: not those on the plate's edge.
    fn changing(&self) -> Rectangle {
        let inside = |mine: &Range<usize>, len: usize| {
            let first = mine.start.max(1) - mine.start;
            let end = mine.end.min(len - 1).max(mine.start) - mine.start;
            first + self.halo..end.max(first) + self.halo
        };
        Rectangle {
            rows: inside(&self.rows, self.shape[0]),
            cols: inside(&self.cols, self.shape[1]),
        }
    }

    /// Of those, the ones with no neighbour outside the block.
    fn inner(&self) -> Rectangle {
        let all = self.changing();
        let inside = |all: &Range<usize>, mine: usize| {
            let start = all.start.max(self.halo + 1);
            start..all.end.min((self.halo + mine).saturating_sub(1)).max(start)
        };
        Rectangle {
            rows: inside(&all.rows, self.rows.len()),
            cols: inside(&all.cols, self.cols.len()),
        }
    }

    /// All ranks exchange their ghost cells, and compute their inner points meanwhile. Collective.
    pub fn step_with_halo(
        &self,
        from: &mut LocalView<'_, f64, 2>,
        to: &mut LocalView<'_, f64, 2>,
    ) -> pgas::Result<()> {
        let (all, inner) = (self.changing(), self.inner());
        let exchange = from.exchange_begin()?;
        self.compute(&exchange, to, &inner.rows, &inner.cols);
        exchange.finish()?;
        // What is left: above, below, left and right of the inner points.
        if inner.rows.is_empty() || inner.cols.is_empty() {
            self.compute(from, to, &all.rows, &all.cols);
            return Ok(());
        }
        self.compute(from, to, &(all.rows.start..inner.rows.start), &all.cols);
        self.compute(from, to, &(inner.rows.end..all.rows.end), &all.cols);
        self.compute(from, to, &inner.rows, &(all.cols.start..inner.cols.start));
        self.compute(from, to, &inner.rows, &(inner.cols.end..all.cols.end));
        Ok(())
    }

    /// The step at these points of a block whose memory has all their neighbours.
    fn compute(&self, from: &[f64], to: &mut [f64], rows: &Range<usize>, cols: &Range<usize>) {
        if cols.is_empty() {
            return;
        }
        let row = |row: usize| row * self.width..(row + 1) * self.width;
        for r in rows.clone() {
            let (above, this, below) = (&from[row(r - 1)], &from[row(r)], &from[row(r + 1)]);
            smooth(above, this, below, &mut to[row(r)], cols.clone());
        }
    }

    /// Each rank reads the points beside its block from their owners. Collective: the modes begin
    /// and end on all ranks together.
    pub fn step_one_sided(
        &self,
        now: &mut GlobalArray<f64, 2>,
        next: &mut GlobalArray<f64, 2>,
    ) -> pgas::Result<()> {
        // From here on all ranks only read `now`, and write only their own part of `next`; until
        // both modes end below, which waits for all ranks again.
        let now = now.read()?;
        let mut next = next.local()?;
        let (rows, cols) = (self.rows.clone(), self.cols.clone());
        let all = self.changing();
        if all.rows.is_empty() || all.cols.is_empty() {
            return Ok(());
        }
        let inner = self.inner();
        self.compute(&now, &mut next, &inner.rows, &inner.cols);

        // A row or a column of another rank; on this node it is not even copied.
        let above = now.section((rows.start.saturating_sub(1), cols.clone()))?;
        let below = now.section((rows.end.min(self.shape[0] - 1), cols.clone()))?;
        let left = now.section((rows.clone(), cols.start.saturating_sub(1)))?;
        let right = now.section((rows.clone(), cols.end.min(self.shape[1] - 1)))?;
        let (height, width) = (rows.len(), cols.len());
        let value = |row: Option<usize>, col: Option<usize>| match (row, col) {
            (None, Some(col)) => above[[0, col]],
            (Some(row), None) => left[[row, 0]],
            (Some(row), Some(col)) if row == height => below[[0, col]],
            (Some(row), Some(col)) if col == width => right[[row, 0]],
            (Some(row), Some(col)) => now[row * width + col],
            (None, None) => f64::NAN,
        };
        for row in all.rows.clone() {
            // All of a row above or below the inner points, else what is left and right of them.
            let inner = match inner.rows.contains(&row) {
                true => inner.cols.clone(),
                false => all.cols.end..all.cols.end,
            };
            for col in (all.cols.start..inner.start).chain(inner.end..all.cols.end) {
                next[row * width + col] = mean(
                    value(Some(row), Some(col)),
                    value(row.checked_sub(1), Some(col)),
                    value(Some(row + 1), Some(col)),
                    value(Some(row), col.checked_sub(1)),
                    value(Some(row), Some(col + 1)),
                );
            }
        }
        Ok(())
    }
}

fn mean(point: f64, above: f64, below: f64, left: f64, right: f64) -> f64 {
    0.2 * (point + above + below + left + right)
}

/// The mean of each point of `row` in these columns and its four neighbours.
pub fn smooth(above: &[f64], row: &[f64], below: &[f64], result: &mut [f64], cols: Range<usize>) {
    // Equal lengths, known before the loop, let the compiler use vector instructions.
    let n = cols.len();
    let (first, end) = (cols.start, cols.end);
    let (above, below) = (&above[first..end], &below[first..end]);
    let (left, right) = (&row[first - 1..end - 1], &row[first + 1..end + 1]);
    let (row, result) = (&row[first..end], &mut result[first..end]);
    for i in 0..n {
        result[i] = mean(row[i], above[i], below[i], left[i], right[i]);
    }
}
