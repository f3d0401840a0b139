//! `Builder`: arrays with a distribution, a process grid or ghost cells of their own.

use super::{ArrayIndex, GlobalArray};
use crate::dist::{Dist, Layout, Plan};
use crate::element::{self, Element};
use crate::error::{Error, ErrorKind, Result};
use crate::world::{Checks, Team};
use std::marker::PhantomData;

/// What ghost cells outside the array hold after an exchange.
///
/// A ghost cell that is outside in several dimensions is left alone if one of them is open; else
/// it holds the value of the first that is fixed.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Boundary<T> {
    /// Whatever is written there by this rank itself: an exchange leaves them alone.
    #[default]
    Open,
    /// The elements at the other end: the dimension is a ring.
    Periodic,
    /// The elements inside, mirrored at the edge: the ghost cell before index 0 holds element 0,
    /// the one before that element 1.
    Mirror,
    /// This value.
    Fixed(T),
}

/// An array that is about to be made: see [`GlobalArray::builder`].
#[derive(Clone, Debug)]
#[must_use = "build() or from_fn() makes the array"]
pub struct Builder<'a, T: Element, const D: usize, I: ArrayIndex<D> = [usize; D]> {
    pub(super) world: &'a Team,
    pub(super) plan: Plan<D>,
    pub(super) boundary: [Boundary<T>; D],
    pub(super) faces_only: bool,
    pub(super) checks: Option<Checks>,
    /// What indices are written as.
    pub(super) index: PhantomData<I>,
}

impl<'a, T: Element, const D: usize, I: ArrayIndex<D>> Builder<'a, T, D, I> {
    pub(super) fn new(world: &'a Team, shape: [usize; D]) -> Self {
        Self {
            world,
            plan: Plan::of_shape(shape),
            boundary: [Boundary::Open; D],
            faces_only: false,
            checks: None,
            index: PhantomData,
        }
    }

    /// How the indices of each dimension are dealt out; [`Dist::Block`] unless said otherwise.
    pub fn dist(mut self, dists: [Dist; D]) -> Self {
        self.plan.dists = dists;
        self
    }

    /// Parts along each dimension. Their product is at most the number of ranks; ranks beyond it
    /// hold nothing, rank `r`'s coordinates are those of `r` in row-major order. Unless it is
    /// given, the grid is the one of all ranks whose parts have the least surface.
    pub fn grid(mut self, grid: [usize; D]) -> Self {
        self.plan.grid = Some(grid);
        self
    }

    /// So many ghost cells on both sides of each dimension of each rank's elements, for copies of
    /// its neighbours': see [`LocalView::exchange`](crate::LocalView::exchange). Not in a cyclic
    /// dimension.
    pub fn halo(mut self, width: [usize; D]) -> Self {
        self.plan.halo = width;
        self
    }

    /// What ghost cells beyond the array's edges hold, by dimension; [`Boundary::Open`] unless
    /// said otherwise.
    pub fn boundary(mut self, boundary: [Boundary<T>; D]) -> Self {
        self.boundary = boundary;
        self
    }

    /// Exchanges fill only the ghost cells that are outside in one dimension, not the corners.
    /// For kernels that look along the axes.
    pub fn faces_only(mut self) -> Self {
        self.faces_only = true;
        self
    }

    /// [`Checks::Collectives`] takes the array out of a job's search for [races](Checks#races), as
    /// where they are meant; atomic operations on it order accesses to other arrays all the same.
    /// [`Checks::Races`] is for jobs that look for races, and says what is so anyway.
    pub fn checks(mut self, checks: Checks) -> Self {
        self.checks = Some(checks);
        self
    }

    /// The array, all bytes zero.
    ///
    /// Collective.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] on all ranks for a distribution or grid that does not fit, or
    /// for [`Checks::Races`] in a job that does not look for them;
    /// else as [`GlobalArray::new`].
    #[track_caller]
    pub fn build(self) -> Result<GlobalArray<T, D>> {
        element::zeroed::<T>()?;
        self.allocate()
    }

    /// The array with `value(index)` as elements; each rank computes its own. Ghost cells are zero
    /// bytes, or `value` of the rank's first element where those are no `T`.
    ///
    /// Collective.
    ///
    /// # Errors
    /// As [`Builder::build`].
    #[track_caller]
    pub fn from_fn(self, mut value: impl FnMut(I) -> T) -> Result<GlobalArray<T, D>> {
        let world = self.world;
        let array = self.allocate()?;
        array.fill_own(|index| value(I::from_array(index)));
        world.barrier()?;
        Ok(array)
    }

    #[track_caller]
    pub(super) fn allocate(self) -> Result<GlobalArray<T, D>> {
        let core = self.world.core();
        let layout = match self.checks {
            Some(Checks::Races) if core.races().is_none() => {
                Err("the job does not look for races: PGAS_CHECKS is not races".into())
            }
            _ => Layout::new(&self.plan, core.size),
        };
        if layout.is_err() {
            // Others may have a plan that is right: they get a mismatch, and do not wait.
            core.refuse();
        }
        let layout = layout.map_err(|reason| {
            Error::new(
                ErrorKind::InvalidArgument,
                format!("an array of {:?}: {reason}", self.plan.shape),
            )
        })?;
        GlobalArray::allocate(core, layout, self.boundary, self.faces_only, self.checks)
    }
}
