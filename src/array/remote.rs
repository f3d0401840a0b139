//! Elements of ranks on other nodes, many at a time.

use crate::atomic::{AtomicElement, AtomicOp};
use crate::dist::Row;
use crate::element::Element;
use crate::error::Result;
use crate::window::Window;

pub(super) struct Reads<'a> {
    window: &'a Window,
}

impl<'a> Reads<'a> {
    pub(super) fn new(window: &'a Window) -> Self {
        Self { window }
    }

    pub(super) fn row<T: Element>(&mut self, rank: usize, row: Row, to: &mut [T]) -> Result<()> {
        for k in 0..row.count {
            let offset = row.offset.wrapping_add_signed(row.step * k.cast_signed());
            to[row.at + k * row.at_step] = self.window.get(rank, offset)?;
        }
        Ok(())
    }

    pub(super) fn finish<T: Element>(self, _to: &mut [T]) -> Result<()> {
        Ok(())
    }
}

pub(super) struct Writes<'a> {
    window: &'a Window,
}

impl<'a> Writes<'a> {
    pub(super) fn new(window: &'a Window) -> Self {
        Self { window }
    }

    pub(super) fn row<T: Element>(&mut self, rank: usize, row: Row, from: &[T]) -> Result<()> {
        for k in 0..row.count {
            let offset = row.offset.wrapping_add_signed(row.step * k.cast_signed());
            self.window
                .put(rank, offset, from[row.at + k * row.at_step])?;
        }
        Ok(())
    }

    pub(super) fn finish(self) -> Result<()> {
        Ok(())
    }
}

/// An element on another node, and the number of its index among those of the call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) rank: usize,
    pub(super) offset: usize,
    pub(super) at: usize,
}

pub(super) struct Gathers;

impl Gathers {
    pub(super) fn run<T: Element>(
        window: &Window,
        places: Vec<Place>,
        mut put: impl FnMut(usize, T),
    ) -> Result<()> {
        for place in places {
            put(place.at, window.get(place.rank, place.offset)?);
        }
        Ok(())
    }
}

pub(super) struct Scatters;

impl Scatters {
    pub(super) fn run<T: Element>(window: &Window, places: Vec<Place>, values: &[T]) -> Result<()> {
        for place in places {
            window.put(place.rank, place.offset, values[place.at])?;
        }
        Ok(())
    }
}

pub(super) struct Applies<'a, T> {
    window: &'a Window,
    op: AtomicOp,
    marker: std::marker::PhantomData<T>,
}

impl<'a, T: AtomicElement> Applies<'a, T> {
    pub(super) fn new(window: &'a Window, op: AtomicOp) -> Self {
        Self {
            window,
            op,
            marker: std::marker::PhantomData,
        }
    }

    pub(super) fn push(&mut self, rank: usize, offset: usize, value: T) -> Result<()> {
        self.window.fetch_op(self.op, rank, offset, value).map(drop)
    }

    pub(super) fn row(&mut self, rank: usize, row: Row, from: &[T]) -> Result<()> {
        for k in 0..row.count {
            let offset = row.offset.wrapping_add_signed(row.step * k.cast_signed());
            self.push(rank, offset, from[row.at + k * row.at_step])?;
        }
        Ok(())
    }

    pub(super) fn finish(&mut self) -> Result<()> {
        Ok(())
    }
}
